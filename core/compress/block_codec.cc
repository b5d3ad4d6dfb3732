#include "core/compress/block_codec.h"

#include <string>
#include <vector>

namespace deft::compress {

std::size_t BlockCodec::encoded_bytes_at(std::uint64_t /*generation*/, std::size_t elements) const {
  return (elements + traits_.block_elements - 1) / traits_.block_elements * traits_.block_bytes;
}

BlockKey BlockCodec::key_of(const Slice& slice, EncodingPass pass) const {
  const EncodingPass drawn = settings_.shares_choice ? EncodingPass::kNode : pass;
  return {seed_of(slice.job, slice.generation, settings_.seed, drawn), slice.first / kBlock, settings_.level};
}

Result<void> BlockCodec::check_encode(const Slice& slice, std::size_t elements, std::size_t out_bytes) const {
  if (slice.first % traits_.block_elements != 0)
    return fail(ErrorKind::kInternal, "a slice begins inside a block: at element " + std::to_string(slice.first));
  if (out_bytes < encoded_bytes(elements))
    return fail(ErrorKind::kInternal, std::to_string(elements) + " values do not fit into " +
                                          std::to_string(out_bytes) + " bytes as " + std::string(traits_.name));
  return {};
}

Result<void> BlockCodec::check_input(std::span<const std::byte> in, std::size_t elements) const {
  if (in.size() == encoded_bytes(elements)) return {};
  return fail(ErrorKind::kViolation, std::to_string(elements) + " values of " + std::string(traits_.name) + " take " +
                                         std::to_string(encoded_bytes(elements)) + " bytes, not " +
                                         std::to_string(in.size()));
}

tl::unexpected<Error> BlockCodec::garbage() const {
  return fail(ErrorKind::kViolation,
              "a block of " + std::string(traits_.name) + " holds a scale or code that no encoder writes");
}

Result<std::size_t> BlockCodec::encode(const Slice& slice, std::span<const float> values,
                                       std::span<std::byte> out) const {
  return encode_with_feedback(slice, values, {}, out);
}

Result<std::size_t> BlockCodec::encode_with_feedback(const Slice& slice, std::span<const float> values,
                                                     std::span<float> residual, std::span<std::byte> out) const {
  if (auto ok = check_encode(slice, values.size(), out.size()); !ok) return tl::unexpected(ok.error());
  if (!residual.empty() && residual.size() != values.size())
    return fail(ErrorKind::kInternal, "a residual has another size than its values");
  float* const left = residual.empty() ? nullptr : residual.data();
  kernels_.encode(key_of(slice, EncodingPass::kNode), values.data(), left, values.size(), out.data());
  return encoded_bytes(values.size());
}

Result<std::size_t> BlockCodec::encode_with_momentum(const Slice& slice, std::span<const float> values,
                                                     std::span<float> momentum, std::span<float> residual,
                                                     std::span<std::byte> out) const {
  if (!traits_.takes_momentum) return encode_with_feedback(slice, values, residual, out);
  if (auto ok = check_encode(slice, values.size(), out.size()); !ok) return tl::unexpected(ok.error());
  if (momentum.size() != values.size())
    return fail(ErrorKind::kInternal, "a momentum has another size than its values");
  kernels_.encode_momentum(key_of(slice, EncodingPass::kNode), values.data(), momentum.data(), settings_.momentum,
                           values.size(), out.data());
  return encoded_bytes(values.size());
}

Result<void> BlockCodec::decode(const Slice& slice, std::span<const std::byte> in, std::span<float> out) const {
  if (auto ok = check_input(in, out.size()); !ok) return ok;
  if (!kernels_.decode(key_of(slice, EncodingPass::kNode), in.data(), out.size(), out.data())) return garbage();
  return {};
}

Result<void> BlockCodec::decode_add(const Slice& slice, std::span<const std::byte> in, std::span<float> sum) const {
  if (auto ok = check_input(in, sum.size()); !ok) return ok;
  if (!kernels_.decode_add(key_of(slice, EncodingPass::kNode), in.data(), sum.size(), sum.data())) return garbage();
  return {};
}

Result<void> BlockCodec::combine(const Slice& slice, std::span<const std::span<const std::byte>> inputs,
                                 std::span<std::byte> out, std::span<float> left_out,
                                 std::size_t& garbage_input) const {
  garbage_input = 0;
  if (inputs.empty() || out.size() % traits_.block_bytes != 0 || slice.first % traits_.block_elements != 0)
    return fail(ErrorKind::kInternal, "a sum of " + std::string(traits_.name) + " needs inputs of whole blocks");
  const std::size_t most = out.size() / traits_.block_bytes * traits_.block_elements;
  const std::size_t elements = left_out.empty() ? most : left_out.size();
  if (encoded_bytes(elements) != out.size())
    return fail(ErrorKind::kInternal, "what a sum leaves out has another size than the sum");
  std::vector<const std::byte*> starts;
  starts.reserve(inputs.size());
  for (const auto& input : inputs) {
    if (auto ok = check_input(input, elements); !ok) {
      garbage_input = starts.size();
      return ok;
    }
    starts.push_back(input.data());
  }
  garbage_input = kernels_.combine(key_of(slice, EncodingPass::kSum), starts.data(), starts.size(), elements,
                                   out.data(), left_out.empty() ? nullptr : left_out.data());
  if (garbage_input < inputs.size()) return garbage();
  garbage_input = 0;
  return {};
}

}  // namespace deft::compress
