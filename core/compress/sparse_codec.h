// topk and dgc: few values of the largest magnitude, exactly; the residual keeps all others.
//
// topk (Aji and Heafield, 2017): ratio=0.01 of the values. dgc (Lin et al., 2018): a momentum for each value, which is added
// to the residual; values that are sent leave both (momentum=0.9, ratio=0.001). During `warmup` generations it sends more: 1/4 of
// the values, then 1/16, and so on, down to the ratio. Without encode_with_momentum dgc is topk. The paper's clipping of
// gradients needs the norm of all of them, and is the trainer's.
#pragma once

#include <utility>

#include "core/compress/codec.h"
#include "core/compress/kernels.h"
#include "core/compress/sparse_format.h"

namespace deft::compress {

class SparseCodec final : public Codec {
 public:
  struct Settings {
    SparseId id = SparseId::kTopk;
    double ratio = 0.01;
    float momentum = 0;
    std::uint64_t warmup = 0;  // generations
  };
  // `kernels` must outlive the codec.
  SparseCodec(Traits traits, const Settings& settings, const CodecKernels& kernels)
      : traits_(std::move(traits)), settings_(settings), kernels_(kernels.select) {}

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
  // How many of `elements` values travel in this generation: at least 1 of any.
  [[nodiscard]] std::size_t entries_at(std::uint64_t generation, std::size_t elements) const;
  [[nodiscard]] Result<void> check(const Slice& slice, std::size_t elements, std::size_t out_bytes) const;

  const Traits traits_;
  const Settings settings_;
  const SelectKernels& kernels_;
};

}  // namespace deft::compress
