#include "core/reduce/loops.h"

namespace deft::reduce {

const ReduceKernels& portable_kernels() {
  static const ReduceKernels table = make_table();
  return table;
}

}  // namespace deft::reduce
