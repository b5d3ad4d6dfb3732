// Sparse encodings: an all-gather of them, or an all-reduce of their values.
#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/compress/sparse_format.h"

namespace deft::daemon {
namespace {

using compress::Codec;
using link::Range;
using link::WorkRequest;

// An all-gather: every node adds the encodings of all. Each encoding stands behind its length.
class Sparse final : public CodedPiece {
 public:
  Sparse(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : CodedPiece(work, buffers, block_bytes_of(work, coding) * work.place.nodes),
        codec_(*coding.codec),
        ranges_(coding.ranges),
        block_bytes_(block_bytes_of(work, coding)) {}

  Result<void> encode() override {
    std::span<std::byte> rest = brought();
    std::ranges::fill(rest, std::byte{});
    for (const Range& range : ranges_) {
      const std::size_t room = room_of(range);
      const auto used = work().encode(codec_, range, rest.subspan(kLengthBytes, room));
      if (!used) return tl::unexpected(used.error());
      const std::uint64_t length = *used;
      std::memcpy(rest.data(), &length, kLengthBytes);
      rest = rest.subspan(kLengthBytes + room);
    }
    return {};
  }

  WorkRequest request() override {
    return WorkRequest::all_gather(memory().data(), std::vector(work().place.nodes, block_bytes_));
  }

  Result<void> decode(bool first_time) override {
    if (first_time && work().has_feedback(codec_)) take_back_where_not_finite();
    for (const Range& range : ranges_) std::ranges::fill(work().of(range), 0.0F);
    for (std::uint32_t node = 0; node < work().place.nodes; ++node)
      if (auto ok = add_from(memory().subspan(node * block_bytes_, block_bytes_)); !ok)
        return garbage_of(ok.error(), node, codec_);
    return {};
  }

  [[nodiscard]] std::span<std::byte> brought() override {
    return memory().subspan(work().place.node * block_bytes_, block_bytes_);
  }

  [[nodiscard]] std::size_t brought_bytes() const override { return block_bytes_; }
  [[nodiscard]] bool needs_what_was_sent() const override { return false; }  // it stays in the memory of the all-gather

  // The bytes that a node brings.
  static std::size_t block_bytes_of(const CodedWork& work, const Coding& coding) {
    const std::uint64_t generation = work.codings->slice.generation;
    std::size_t bytes = 0;
    for (const Range& range : coding.ranges)
      bytes += kLengthBytes + coding.codec->encoded_bytes_at(generation, range.count);
    return bytes;
  }

 private:
  static constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

  [[nodiscard]] std::size_t room_of(const Range& range) const {
    return codec_.encoded_bytes_at(work().codings->slice.generation, range.count);
  }

  // A range is not finite as a whole.
  void take_back_where_not_finite() {
    std::size_t at = 0;
    for (const Range& range : ranges_) {
      const auto code_of = [&](std::uint32_t node) {
        return memory().subspan(node * block_bytes_ + at + kLengthBytes, room_of(range));
      };
      bool is_finite = true;
      for (std::uint32_t node = 0; node < work().place.nodes; ++node)
        is_finite &= !compress::is_sparse_nan(code_of(node));
      if (!is_finite && !compress::is_sparse_nan(code_of(work().place.node))) {
        const auto use = work().residuals_of(range);
        const std::span<float> residuals = use.values();
        const std::span<const float> values = work().of(range);
        static_cast<void>(codec_.decode_add(work().slice_at(range.first), sent_code(at), residuals));
        for (std::size_t i = 0; i < residuals.size(); ++i) residuals[i] -= values[i];
      }
      at += kLengthBytes + room_of(range);
    }
  }

  // This node's own code, which stands at this place of its block.
  [[nodiscard]] std::span<const std::byte> sent_code(std::size_t at) {
    const std::span<const std::byte> own = brought().subspan(at);
    std::uint64_t length = 0;
    std::memcpy(&length, own.data(), kLengthBytes);
    return own.subspan(kLengthBytes, std::min<std::size_t>(length, own.size() - kLengthBytes));
  }

  Result<void> add_from(std::span<const std::byte> rest) {
    for (const Range& range : ranges_) {
      const std::size_t room = room_of(range);
      std::uint64_t length = 0;
      std::memcpy(&length, rest.data(), kLengthBytes);
      if (length > room)
        return fail(ErrorKind::kViolation, std::to_string(length) + " bytes, of at most " + std::to_string(room));
      auto ok = codec_.decode_add(work().slice_at(range.first), rest.subspan(kLengthBytes, length), work().of(range));
      if (!ok) return ok;
      rest = rest.subspan(kLengthBytes + room);
    }
    return {};
  }

  const Codec& codec_;
  const std::vector<Range>& ranges_;
  const std::size_t block_bytes_;
};

// An all-reduce of the decoded encodings, at so many nodes that the encodings of all would be more bytes.
class SparseSum final : public CodedPiece {
 public:
  // From where on it sends less: an all-reduce carries the data twice, whatever the number of nodes.
  static bool sends_less(const CodedWork& work, const Coding& coding) {
    return Sparse::block_bytes_of(work, coding) * work.place.nodes > 2 * elements_of(coding.ranges) * sizeof(float);
  }

  SparseSum(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : CodedPiece(work, buffers, elements_of(coding.ranges) * sizeof(float)),
        pool_(buffers),
        codec_(*coding.codec),
        ranges_(coding.ranges) {}

  Result<void> encode() override {
    std::vector<std::byte> code = pool_.take(longest_code_bytes());
    Result<void> ok;
    for_each_range([&](const Range& range, std::span<float> values) {
      const auto used = ok ? work().encode(codec_, range, code) : std::size_t{0};
      if (ok && !used) ok = tl::unexpected(used.error());
      if (!ok) return;
      std::ranges::fill(values, 0.0F);
      ok = codec_.decode_add(work().slice_at(range.first), std::span(code).first(*used), values);
    });
    pool_.give_back(std::move(code));
    return ok;
  }

  WorkRequest request() override {
    return WorkRequest::all_reduce(memory().data(), memory().size() / sizeof(float), model::DType::kFloat32,
                                   model::ReduceOp::kSum);
  }

  Result<void> decode(bool first_time) override {
    if (first_time && !what_was_sent().empty())
      work().take_back_where_not_finite(ranges_, floats_of(memory()), floats_of(what_was_sent()));
    for_each_range(
        [this](const Range& range, std::span<const float> sums) { std::ranges::copy(sums, work().of(range).begin()); });
    return {};
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return work().has_feedback(codec_); }

 private:
  // Each range with its place in the message.
  template <typename Visit>
  void for_each_range(const Visit& visit) {
    auto* at = reinterpret_cast<float*>(memory().data());
    for (const Range& range : ranges_) {
      visit(range, std::span(at, range.count));
      at += range.count;
    }
  }

  [[nodiscard]] std::size_t longest_code_bytes() const {
    std::size_t bytes = 0;
    for (const Range& range : ranges_)
      bytes = std::max(bytes, codec_.encoded_bytes_at(work().codings->slice.generation, range.count));
    return bytes;
  }

  BufferPool& pool_;
  const Codec& codec_;
  const std::vector<Range>& ranges_;
};

}  // namespace

std::unique_ptr<CodedPiece> sparse_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers) {
  if (SparseSum::sends_less(work, coding)) return std::make_unique<SparseSum>(work, coding, buffers);
  return std::make_unique<Sparse>(work, coding, buffers);
}

}  // namespace deft::daemon
