// AVX2 and F16C: the same loops, vectorised eight floats wide.
#include "core/compress/kernels.h"

#if defined(__AVX2__) && defined(__F16C__)
#include "core/compress/loops.h"
#include "core/reduce/reduce.h"

namespace deft::compress {
const CodecKernels* avx2_kernels() {
  if (!reduce::has_avx2_and_f16c()) return nullptr;
  static const CodecKernels table = make_table();
  return &table;
}

}  // namespace deft::compress

#else

namespace deft::compress {
const CodecKernels* avx2_kernels() { return nullptr; }
}  // namespace deft::compress

#endif
