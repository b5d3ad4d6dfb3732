// AVX-512: the same loops, vectorised sixteen floats wide.
#include "core/compress/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "core/compress/loops.h"

namespace deft::compress {

const CodecKernels* avx512_kernels() {
  const bool runs_here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!runs_here || avx2_kernels() == nullptr) return nullptr;  // that one knows about F16C
  static const CodecKernels table = make_table();
  return &table;
}

}  // namespace deft::compress

#else

namespace deft::compress {
const CodecKernels* avx512_kernels() { return nullptr; }
}  // namespace deft::compress

#endif
