#include "core/reduce/reduce.h"

#include <cstring>

#include "core/reduce/kernels.h"

namespace deft::reduce {

const KernelTable& best_kernels() {
  static const KernelTable& best = avx2_kernels() != nullptr ? *avx2_kernels() : portable_kernels();
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
