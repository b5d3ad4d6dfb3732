#include "core/compress/loops.h"

namespace deft::compress {

const KernelTable& portable_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace deft::compress
