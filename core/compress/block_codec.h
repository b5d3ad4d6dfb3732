// A codec whose encoding is an array of independent blocks: sizes and checks. The kernels do the work.
#pragma once

#include <utility>

#include "core/compress/codec.h"
#include "core/compress/kernels.h"
#include "core/compress/random.h"

namespace deft::compress {

class BlockCodec final : public Codec {
 public:
  struct Settings {
    BlockFormat format = BlockFormat::kInt8;
    std::uint32_t level = 0;     // BlockKey::level
    std::uint64_t seed = 0;      // the user's
    bool shares_choice = false;  // all nodes and the owner draw the same random numbers
    float momentum = 0;          // of a codec with takes_momentum
  };
  // `kernels` must outlive the codec.
  BlockCodec(Traits traits, const Settings& settings, const CodecKernels& kernels)
      : traits_(std::move(traits)), settings_(settings), kernels_(kernels.at(settings.format)) {}

  [[nodiscard]] const Traits& traits() const override { return traits_; }
  [[nodiscard]] std::size_t encoded_bytes_at(std::uint64_t generation, std::size_t elements) const override;
  Result<std::size_t> encode(const Slice& slice, std::span<const float> values,
                             std::span<std::byte> out) const override;
  Result<std::size_t> encode_with_feedback(const Slice& slice, std::span<const float> values, std::span<float> residual,
                                           std::span<std::byte> out) const override;
  Result<std::size_t> encode_with_momentum(const Slice& slice, std::span<const float> values, std::span<float> momentum,
                                           std::span<float> residual, std::span<std::byte> out) const override;
  Result<void> decode(const Slice& slice, std::span<const std::byte> in, std::span<float> out) const override;
  Result<void> decode_add(const Slice& slice, std::span<const std::byte> in, std::span<float> sum) const override;
  Result<void> combine(const Slice& slice, std::span<const std::span<const std::byte>> inputs, std::span<std::byte> out,
                       std::span<float> left_out, std::size_t& garbage_input) const override;

 private:
  [[nodiscard]] BlockKey key_of(const Slice& slice, EncodingPass pass) const;
  [[nodiscard]] Result<void> check_encode(const Slice& slice, std::size_t elements, std::size_t out_bytes) const;
  [[nodiscard]] Result<void> check_input(std::span<const std::byte> in, std::size_t elements) const;
  [[nodiscard]] tl::unexpected<Error> garbage() const;

  const Traits traits_;
  const Settings settings_;
  const BlockKernels& kernels_;
};

}  // namespace deft::compress
