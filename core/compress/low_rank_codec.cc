#include "core/compress/low_rank_codec.h"

#include <string>

namespace deft::compress {

tl::unexpected<Error> LowRankCodec::needs_a_matrix() const {
  return fail(ErrorKind::kInvalid, std::string(traits_.name) + " encodes matrices, and not slices of them",
              "choose int4 or topk");
}

std::size_t LowRankCodec::encoded_bytes_at(std::uint64_t /*generation*/, std::size_t elements) const {
  return elements * sizeof(float);
}

Result<std::size_t> LowRankCodec::encode(const Slice& /*slice*/, std::span<const float> /*values*/,
                                         std::span<std::byte> /*out*/) const {
  return needs_a_matrix();
}

Result<std::size_t> LowRankCodec::encode_with_feedback(const Slice& /*slice*/, std::span<const float> /*values*/,
                                                       std::span<float> /*residual*/,
                                                       std::span<std::byte> /*out*/) const {
  return needs_a_matrix();
}

Result<void> LowRankCodec::decode(const Slice& /*slice*/, std::span<const std::byte> /*in*/,
                                  std::span<float> /*out*/) const {
  return needs_a_matrix();
}

Result<void> LowRankCodec::decode_add(const Slice& /*slice*/, std::span<const std::byte> /*in*/,
                                      std::span<float> /*sum*/) const {
  return needs_a_matrix();
}

Result<void> LowRankCodec::combine(const Slice& /*slice*/, std::span<const std::span<const std::byte>> /*inputs*/,
                                   std::span<std::byte> /*out*/, std::span<float> /*left_out*/,
                                   std::size_t& garbage_input) const {
  garbage_input = 0;
  return needs_a_matrix();
}

}  // namespace deft::compress
