#include "bench/compress/emulation.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/compress/emulated_matrix.h"
#include "core/compress/low_rank_codec.h"
#include "core/compress/registry.h"
#include "core/link/work_request.h"

namespace deft {
namespace {

using compress::Codec;
using compress::Slice;
using Code = std::vector<std::byte>;

// One sum over all nodes.
class EncodedSum {
 public:
  EncodedSum(const Codec& codec, std::size_t nodes, float* const* residuals, std::size_t elements, const Slice& slice)
      : codec_(codec), nodes_(nodes), residuals_(residuals), elements_(elements), slice_(slice), codes_(nodes) {}

  Result<void> encode(const float* const* values);
  Result<void> sum(std::span<float> out) {
    if (codec_.traits().law == compress::Law::kSparse) return gather(out);
    return codec_.traits().law == compress::Law::kRequantised && nodes_ == 2 ? add_by_all(out) : requantise(out);
  }
  [[nodiscard]] std::size_t wire_bytes() const { return codes_.front().size(); }

 private:
  [[nodiscard]] bool has_feedback() const { return residuals_ != nullptr && codec_.traits().uses_feedback; }
  [[nodiscard]] std::span<float> residual(std::size_t node, std::size_t first, std::size_t count) const {
    return {residuals_[node] + first, count};
  }
  Result<void> requantise(std::span<float> out);
  Result<void> add_by_all(std::span<float> out);
  Result<void> gather(std::span<float> out);
  Result<void> combine(std::size_t owner, link::Range blocks, std::span<float> out);

  const Codec& codec_;
  const std::size_t nodes_;
  float* const* const residuals_;
  const std::size_t elements_;
  const Slice slice_;
  std::vector<Code> codes_;
};

Result<void> EncodedSum::encode(const float* const* values) {
  for (std::size_t node = 0; node < nodes_; ++node) {
    Code& code = codes_[node];
    code.resize(codec_.encoded_bytes_at(slice_.generation, elements_));
    const std::span<const float> own(values[node], elements_);
    const auto used = has_feedback() ? codec_.encode_with_feedback(slice_, own, residual(node, 0, elements_), code)
                                     : codec_.encode(slice_, own, code);
    if (!used) return tl::unexpected(used.error());
    code.resize(*used);
  }
  return {};
}

// The owner's work for blocks that it owns, and what all nodes make of it.
Result<void> EncodedSum::combine(std::size_t owner, link::Range blocks, std::span<float> out) {
  const auto& traits = codec_.traits();
  const std::size_t first = blocks.first * traits.block_elements, count = blocks.count * traits.block_elements;
  const auto code_of = [&](Code& code) {
    return std::span(code).subspan(blocks.first * traits.block_bytes, blocks.count * traits.block_bytes);
  };
  std::vector<std::span<const std::byte>> inputs;
  for (Code& code : codes_) inputs.emplace_back(code_of(code));
  Slice slice = slice_;
  slice.first += first;
  Code sum(blocks.count * traits.block_bytes);
  std::vector<float> left_out(has_feedback() ? count : 0);
  std::size_t garbage = 0;
  if (auto ok = codec_.combine(slice, inputs, sum, left_out, garbage); !ok) return ok;
  for (std::size_t i = 0; i < left_out.size(); ++i) residuals_[owner][first + i] += left_out[i];
  return codec_.decode(slice, sum, out.subspan(first, count));
}

Result<void> EncodedSum::requantise(std::span<float> out) {
  auto request = link::WorkRequest::all_reduce(codes_.front().data(), codes_.front().size(), model::DType::kUInt8,
                                               model::ReduceOp::kSum);
  request.block = codec_.traits().block_bytes;
  for (std::size_t owner = 0; owner < nodes_; ++owner) {
    const auto bytes = request.owned_by(static_cast<std::uint32_t>(owner), static_cast<std::uint32_t>(nodes_));
    const link::Range blocks{bytes.first / request.block, bytes.count / request.block};
    if (blocks.count == 0) continue;
    if (auto ok = combine(owner, blocks, out); !ok) return ok;
    // Small data is owned by every node, and computed alike on each.
    if (blocks.count * request.block == codes_.front().size()) break;
  }
  return {};
}

// What each of two nodes does.
Result<void> EncodedSum::add_by_all(std::span<float> out) {
  if (auto ok = codec_.decode(slice_, codes_.front(), out); !ok) return ok;
  return codec_.decode_add(slice_, codes_.back(), out);
}

Result<void> EncodedSum::gather(std::span<float> out) {
  std::ranges::fill(out, 0.0F);
  for (const Code& code : codes_)
    if (auto ok = codec_.decode_add(slice_, code, out); !ok) return ok;
  return {};
}

const Codec& codec_of(const void* codec) { return *static_cast<const Codec*>(codec); }

// A matrix, and the number of its elements.
struct OpenMatrix {
  EmulatedMatrix matrix;
  std::size_t elements;
};

Result<std::unique_ptr<OpenMatrix>> open_matrix(const char* name, std::size_t nodes,
                                                std::span<const std::uint64_t> dimensions, std::uint64_t job,
                                                std::uint64_t first) {
  auto made = compress::make_codec(name);
  if (!made) return tl::unexpected(made.error());
  const std::shared_ptr<const Codec> codec = *std::move(made);
  if (codec->traits().law != compress::Law::kLowRank)
    return fail(ErrorKind::kInvalid, std::string(name) + " needs no matrix", "use deft_emulation_open");
  const auto shape = compress::matrix_of(dimensions, compress::as_low_rank(*codec).rank());
  EmulatedMatrix matrix(codec, {.nodes = nodes, .shape = shape, .job = job, .first = first});
  return std::make_unique<OpenMatrix>(OpenMatrix{std::move(matrix), shape.elements()});
}

}  // namespace
}  // namespace deft

void* deft_emulation_open(const char* name, char* error, std::size_t error_bytes) {
  auto codec = deft::compress::make_codec(name);
  if (codec && (*codec)->traits().law == deft::compress::Law::kLowRank)
    codec = deft::fail(deft::ErrorKind::kInvalid, std::string(name) + " encodes matrices", "open a matrix");
  if (codec) return const_cast<deft::compress::Codec*>(codec->release());
  std::snprintf(error, error_bytes, "%s", codec.error().message().c_str());
  return nullptr;
}

void deft_emulation_close(void* codec) { delete static_cast<deft::compress::Codec*>(codec); }

int deft_emulation_uses_feedback(const void* codec) { return deft::codec_of(codec).traits().uses_feedback ? 1 : 0; }

std::size_t deft_emulation_sum(const void* codec, std::size_t nodes, const float* const* values,
                               float* const* residuals, float* sum, std::size_t elements, std::uint64_t job,
                               std::uint64_t generation, std::uint64_t first) {
  deft::EncodedSum encoded(deft::codec_of(codec), nodes, residuals, elements,
                           {.job = job, .generation = generation, .first = first});
  if (!encoded.encode(values) || !encoded.sum({sum, elements})) return 0;
  return encoded.wire_bytes();
}

std::size_t deft_emulation_encoded_bytes(const void* codec, std::size_t elements) {
  return deft::codec_of(codec).encoded_bytes(elements);
}

std::size_t deft_emulation_encode(const void* codec, const float* values, std::size_t elements, void* out) {
  const deft::compress::Codec& by = deft::codec_of(codec);
  return by.encode({}, {values, elements}, {static_cast<std::byte*>(out), by.encoded_bytes(elements)}).value_or(0);
}

int deft_emulation_decode_add(const void* codec, const void* in, std::size_t bytes, float* sum, std::size_t elements) {
  const std::span<const std::byte> code(static_cast<const std::byte*>(in), bytes);
  return deft::codec_of(codec).decode_add({}, code, {sum, elements}) ? 1 : 0;
}

void* deft_emulation_open_matrix(const char* codec, std::size_t nodes, const std::uint64_t* dimensions,
                                 std::size_t dimension_count, std::uint64_t job, std::uint64_t first, char* error,
                                 std::size_t error_bytes) {
  auto matrix = deft::open_matrix(codec, nodes, {dimensions, dimension_count}, job, first);
  if (matrix) return matrix->release();
  std::snprintf(error, error_bytes, "%s", matrix.error().message().c_str());
  return nullptr;
}

void deft_emulation_close_matrix(void* matrix) { delete static_cast<deft::OpenMatrix*>(matrix); }

std::size_t deft_emulation_sum_matrix(void* matrix, const float* const* values, float* sum, std::uint64_t generation) {
  auto& open = *static_cast<deft::OpenMatrix*>(matrix);
  return open.matrix.sum(values, {sum, open.elements}, generation);
}

void deft_emulation_residual_of_matrix(void* matrix, std::size_t node, float* out) {
  std::ranges::copy(static_cast<deft::OpenMatrix*>(matrix)->matrix.residual(node), out);
}
