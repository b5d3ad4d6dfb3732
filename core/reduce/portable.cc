#include "core/reduce/loops.h"

namespace deft::reduce {

const KernelTable& portable_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace deft::reduce
