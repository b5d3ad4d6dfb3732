#include "core/compress/codec.h"

namespace deft::compress {

Result<std::size_t> Codec::encode_with_momentum(const Slice& slice, std::span<const float> values,
                                                std::span<float> /*momentum*/, std::span<float> residual,
                                                std::span<std::byte> out) const {
  return residual.empty() ? encode(slice, values, out) : encode_with_feedback(slice, values, residual, out);
}

}  // namespace deft::compress
