// AVX2 and F16C: the same loops, vectorised eight floats wide.
#include "core/compress/kernels.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <cpuid.h>

#include "core/compress/loops.h"

namespace deft::compress {
namespace {

// Not every compiler's __builtin_cpu_supports knows the word f16c.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const KernelTable* avx2_kernels() {
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return nullptr;
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace deft::compress

#else

namespace deft::compress {
const KernelTable* avx2_kernels() { return nullptr; }
}  // namespace deft::compress

#endif
