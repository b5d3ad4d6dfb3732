#include "core/compress/loops.h"

namespace deft::compress {

const CodecKernels& portable_kernels() {
  static const CodecKernels table = make_table();
  return table;
}

}  // namespace deft::compress
