// Reduces the buffers of several workers element by element, in place, with SIMD.
//
//   reduce(out, inputs, count, model::DType::kFloat32, model::ReduceOp::kSum);
//
// float16 and bfloat16 accumulate in float32 and are rounded once (to nearest even). The result depends only on the order of
// the inputs, never on alignment, length or the instruction set.
#pragma once

#include <cstddef>
#include <span>

#include "core/model/dtype.h"

namespace deft::reduce {

// out[i] = op over all inputs[j][i], for `count` elements. `out` may be one of the inputs. Any thread.
void reduce(std::byte* out, std::span<const std::byte* const> inputs, std::size_t count, model::DType dtype,
            model::ReduceOp op);

// True if this processor has AVX2 and F16C. Kernels that are compiled for both ask first, here and in core/compress.
bool has_avx2_and_f16c();

}  // namespace deft::reduce
