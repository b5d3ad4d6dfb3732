// Blocks of codes: an all-reduce whose owners decode, add and encode again.
#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/compress/encoded_sum.h"
#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using compress::Codec;
using link::Range;
using link::WorkRequest;

// An all-reduce of blocks, with the owner's stage between its halves.
class Requantised final : public CodedPiece {
 public:
  Requantised(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : CodedPiece(work, buffers, blocks_of(coding) * coding.codec->traits().block_bytes),
        codec_(*coding.codec),
        ranges_(coding.ranges) {}

  Result<void> encode() override {
    return for_each_run(all_blocks(), [this](const Range& run, std::size_t at) -> Result<void> {
      const auto used = work().encode(codec_, run, memory().subspan(at, code_bytes(run)));
      if (!used) return tl::unexpected(used.error());
      return {};
    });
  }

  WorkRequest request() override {
    auto request = shape();
    const Range bytes = request.owned_by(work().place.node, work().place.nodes);
    owned_ = {bytes.first / block_bytes(), bytes.count / block_bytes()};
    if (work().has_feedback(codec_)) left_out_.assign(owned_.count * block_elements(), 0.0F);
    request.owner_stage = [this](const link::OwnedSegment& segment) { own(segment); };
    request.encoded = {.block_values = block_elements(),
                       .owner_keeps_rest = work().has_feedback(codec_),
                       .recipe = [this](const Range& part) { return recipe_of(part); }};
    return request;
  }

  Result<void> decode(bool first_time) override {
    if (garbage_) return tl::unexpected(*garbage_);
    const bool takes_back = first_time && needs_what_was_sent() && !what_was_sent().empty();
    auto ok = for_each_run(all_blocks(), [&](const Range& run, std::size_t at) -> Result<void> {
      auto decoded = takes_back ? decode_in_chunks(run, at) : decode(run, memory(), at, work().of(run));
      if (!decoded) return garbage_of(decoded.error(), owner_of(at), codec_);
      return {};
    });
    if (ok && first_time) keep_what_was_left_out();
    return ok;
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return work().has_feedback(codec_); }

 private:
  static constexpr std::size_t kChunk = 4096;  // elements: they stay in the cache; whole blocks of every codec

  Result<void> decode(const Range& run, std::span<const std::byte> codes, std::size_t at, std::span<float> out) const {
    return codec_.decode(work().slice_at(run.first), codes.subspan(at, code_bytes(run)), out);
  }

  // The gradients that were brought are looked at before the sums replace them.
  Result<void> decode_in_chunks(const Range& run, std::size_t at) {
    std::array<float, kChunk> memory_of_sums{}, memory_of_sent{};
    for (std::size_t done = 0; done < run.count; done += kChunk) {
      const Range chunk{run.first + done, std::min(kChunk, run.count - done)};
      const std::span sums = std::span(memory_of_sums).first(chunk.count);
      const std::size_t code_at = at + done / block_elements() * block_bytes();
      if (auto ok = decode(chunk, memory(), code_at, sums); !ok) return ok;
      if (!all_finite(sums)) {
        const std::span sent = std::span(memory_of_sent).first(chunk.count);
        if (auto ok = decode(chunk, what_was_sent(), code_at, sent); !ok) return ok;
        const auto use = work().residuals_of(chunk);
        take_back(use.values(), sums, sent, work().of(chunk));
      }
      std::ranges::copy(sums, work().of(chunk).begin());
    }
    return {};
  }

  // The request without an owner's stage: it decides who owns which blocks.
  [[nodiscard]] WorkRequest shape() {
    auto request =
        WorkRequest::all_reduce(memory().data(), memory().size(), model::DType::kUInt8, model::ReduceOp::kSum);
    request.block = block_bytes();
    return request;
  }
  [[nodiscard]] Range all_blocks() { return {0, memory().size() / block_bytes()}; }
  static std::size_t blocks_of(const Coding& coding) {
    return elements_of(coding.ranges) / coding.codec->traits().block_elements;
  }
  [[nodiscard]] std::size_t block_bytes() const { return codec_.traits().block_bytes; }
  [[nodiscard]] std::size_t block_elements() const { return codec_.traits().block_elements; }
  [[nodiscard]] std::size_t code_bytes(const Range& run) const { return run.count / block_elements() * block_bytes(); }

  // Visits blocks in runs that lie in one piece: visit(elements of the transfer, offset of their code).
  template <typename Visit>
  Result<void> for_each_run(Range blocks, const Visit& visit) const {
    std::size_t first = 0;  // block of the range
    for (const Range& range : ranges_) {
      const std::size_t count = range.count / block_elements();
      const std::size_t begin = std::max(first, blocks.first);
      const std::size_t end = std::min(first + count, blocks.first + blocks.count);
      if (begin < end) {
        const Range run{range.first + (begin - first) * block_elements(), (end - begin) * block_elements()};
        if (auto ok = visit(run, begin * block_bytes()); !ok) return ok;
      }
      first += count;
    }
    return {};
  }

  // The recipe by which a server adds these bytes.
  [[nodiscard]] std::vector<std::byte> recipe_of(const Range& bytes) const {
    const compress::Slice slice = work().slice_at(0);
    compress::SumRecipe recipe{.codec = text_of(codec_), .job = slice.job, .generation = slice.generation, .runs = {}};
    const Range blocks{bytes.first / block_bytes(), bytes.count / block_bytes()};
    static_cast<void>(for_each_run(blocks, [&](const Range& run, std::size_t) -> Result<void> {
      recipe.runs.push_back({slice.first + run.first, static_cast<std::uint32_t>(run.count / block_elements())});
      return {};
    }));
    return recipe.bytes();
  }

  // A link thread. If all is sent whole, every node does this for all blocks, and keeps what its own part leaves out.
  void own(const link::OwnedSegment& segment) {
    const Range blocks{segment.first / block_bytes(), segment.data.size() / block_bytes()};
    const std::size_t end = blocks.first + blocks.count;
    const std::size_t owned_first = std::clamp(owned_.first, blocks.first, end);
    const std::size_t owned_end = std::clamp(owned_.first + owned_.count, owned_first, end);
    const Range owned{owned_first, owned_end - owned_first};
    for (const Range& part :
         {Range{blocks.first, owned_first - blocks.first}, owned, Range{owned_end, end - owned_end}}) {
      const bool is_owned = part.first == owned.first && part.count == owned.count;
      auto ok =
          for_each_run(part, [&](const Range& run, std::size_t at) { return combine(segment, run, at, is_owned); });
      if (!ok && !garbage_) garbage_ = ok.error();
    }
  }

  Result<void> combine(const link::OwnedSegment& segment, const Range& run, std::size_t at, bool is_owned) {
    const std::size_t within = at - segment.first;
    std::span<float> left_out;
    if (is_owned && !left_out_.empty())
      left_out = std::span(left_out_).subspan((at / block_bytes() - owned_.first) * block_elements(), run.count);
    const std::span<std::byte> out = segment.data.subspan(within, code_bytes(run));
    if (!segment.sum.empty()) {
      const std::span sum = segment.sum.subspan(within / block_bytes() * block_elements(), run.count);
      return encode_sum(codec_, work().slice_at(run.first), sum, out, left_out);
    }
    inputs_.clear();
    for (const std::byte* const input : segment.inputs) inputs_.emplace_back(input + within, code_bytes(run));
    std::size_t node = 0;
    auto ok = codec_.combine(work().slice_at(run.first), inputs_, out, left_out, node);
    if (!ok) return garbage_of(ok.error(), node, codec_);
    return {};
  }

  void keep_what_was_left_out() {
    if (left_out_.empty()) return;
    const float* left = left_out_.data();
    static_cast<void>(for_each_run(owned_, [&](const Range& run, std::size_t) -> Result<void> {
      const auto use = work().residuals_of(run);
      for (float& residual : use.values()) residual += *left++;
      return {};
    }));
  }

  [[nodiscard]] std::uint32_t owner_of(std::size_t at) {
    const WorkRequest request = shape();
    std::uint32_t node = 0;
    for (; node + 1 < work().place.nodes; ++node) {
      const Range owned = request.owned_by(node, work().place.nodes);
      if (at < owned.first + owned.count) break;
    }
    return node;
  }

  const Codec& codec_;
  const std::vector<Range>& ranges_;
  Range owned_;  // blocks
  std::vector<float> left_out_;
  std::vector<std::span<const std::byte>> inputs_;
  std::optional<Error> garbage_;
};

}  // namespace

std::unique_ptr<CodedPiece> requantised_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers) {
  return std::make_unique<Requantised>(work, coding, buffers);
}

}  // namespace deft::daemon
