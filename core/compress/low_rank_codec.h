// lowrank: a matrix travels as one (ACP-SGD) or both (PowerSGD) of two thin factors (low_rank.h).
//
// This codec carries its settings alone. What a factor stands for depends on the matrix and on factors of earlier generations, which a
// slice does not have: so encode, decode and their like are errors (kInvalid), and Law::kLowRank says that the caller does their work.
#pragma once

#include <utility>

#include "core/compress/codec.h"
#include "core/compress/low_rank.h"

namespace deft::compress {

enum class LowRankMethod : std::uint8_t { kAcpSgd, kPowerSgd };

class LowRankCodec final : public Codec {
 public:
  LowRankCodec(Traits traits, std::size_t rank, LowRankMethod method)
      : traits_(std::move(traits)), rank_(rank), method_(method) {}

  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] LowRankMethod method() const { return method_; }

  [[nodiscard]] const Traits& traits() const override { return traits_; }
  // A matrix is encoded only if its factors are smaller.
  [[nodiscard]] std::size_t encoded_bytes_at(std::uint64_t generation, std::size_t elements) const override;
  Result<std::size_t> encode(const Slice& slice, std::span<const float> values,
                             std::span<std::byte> out) const override;
  Result<std::size_t> encode_with_feedback(const Slice& slice, std::span<const float> values, std::span<float> residual,
                                           std::span<std::byte> out) const override;
  Result<void> decode(const Slice& slice, std::span<const std::byte> in, std::span<float> out) const override;
  Result<void> decode_add(const Slice& slice, std::span<const std::byte> in, std::span<float> sum) const override;
  Result<void> combine(const Slice& slice, std::span<const std::span<const std::byte>> inputs, std::span<std::byte> out,
                       std::span<float> left_out, std::size_t& garbage_input) const override;

 private:
  [[nodiscard]] tl::unexpected<Error> needs_a_matrix() const;

  const Traits traits_;
  const std::size_t rank_;
  const LowRankMethod method_;
};

// The codec's law is kLowRank.
inline const LowRankCodec& as_low_rank(const Codec& codec) { return static_cast<const LowRankCodec&>(codec); }

}  // namespace deft::compress
