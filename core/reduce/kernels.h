// The reduction kernels of each instruction set. Only core/reduce and its tests use this header; reduce.h is the interface.
//
//   best_kernels().at(dtype, op)(out, inputs, input_count, count);
#pragma once

#include <cstddef>

#include "core/model/dtype.h"

namespace deft::reduce {

// Reduces `inputs` (at least two) element by element into `out`. Buffers may have any alignment.
using Kernel = void (*)(std::byte* out, const std::byte* const* inputs, std::size_t input_count, std::size_t count);

// The kernels of one instruction set: a function for each dtype and operation, indexed by their wire numbers.
struct ReduceKernels {
  static constexpr std::size_t kDTypes = 9;
  static constexpr std::size_t kOps = 4;
  Kernel kernels[kDTypes][kOps] = {};

  [[nodiscard]] Kernel at(model::DType dtype, model::ReduceOp op) const {
    return kernels[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
  }
};

const ReduceKernels& portable_kernels();  // compiled for the baseline of the build
const ReduceKernels* avx2_kernels();      // nullptr if this processor (or build) has no AVX2 and F16C
const ReduceKernels& best_kernels();      // the fastest kernels that run on this processor

}  // namespace deft::reduce
