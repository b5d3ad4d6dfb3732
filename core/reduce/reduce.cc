#include "core/reduce/reduce.h"

#include <cstring>

#include "core/reduce/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace deft::reduce {

bool has_avx2_and_f16c() {
#if defined(__x86_64__)
  // Not every compiler's __builtin_cpu_supports knows the word f16c.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

const ReduceKernels& best_kernels() {
  static const ReduceKernels& best = avx2_kernels() != nullptr ? *avx2_kernels() : portable_kernels();
  return best;
}

void reduce(std::byte* out, std::span<const std::byte* const> inputs, std::size_t count, model::DType dtype,
            model::ReduceOp op) {
  if (inputs.empty() || count == 0) return;
  if (inputs.size() == 1) {
    if (out != inputs[0]) std::memcpy(out, inputs[0], count * model::dtype_bytes(dtype));
    return;
  }
  best_kernels().at(dtype, op)(out, inputs.data(), inputs.size(), count);
}

}  // namespace deft::reduce
