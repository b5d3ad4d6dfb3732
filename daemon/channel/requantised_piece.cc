// Blocks of codes: an all-reduce whose owners decode, add and encode again; or, between two nodes, codes that both nodes decode and add.
#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/compress/encoded_sum.h"
#include "core/compress/measures.h"
#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using compress::Codec;
using link::Range;
using link::WorkRequest;

constexpr std::size_t kDecodedAtOnce = 4096;  // elements: they stay in the cache; whole blocks of every codec
using DecodedChunk = std::array<float, kDecodedAtOnce>;

// The code of one block stands behind that of another, in the order of their elements.
class BlockPiece : public CodedPiece {
 public:
  // With memory for the codes of so many nodes.
  BlockPiece(const CodedWork& work, const Coding& coding, BufferPool& buffers, std::size_t nodes)
      : CodedPiece(work, buffers, nodes * bytes_of(coding)), codec_(*coding.codec), ranges_(coding.ranges) {}

  Result<void> encode() override {
    return for_each_run(all_blocks(), [this](const Range& run, std::size_t at) -> Result<void> {
      const auto used = work().encode(codec_, run, brought().subspan(at, code_bytes(run)));
      if (!used) return tl::unexpected(used.error());
      return {};
    });
  }

 protected:
  static std::size_t bytes_of(const Coding& coding) {
    const compress::Traits& traits = coding.codec->traits();
    return elements_of(coding.ranges) / traits.block_elements * traits.block_bytes;
  }
  [[nodiscard]] const Codec& codec() const { return codec_; }
  [[nodiscard]] std::size_t block_bytes() const { return codec_.traits().block_bytes; }
  [[nodiscard]] std::size_t block_elements() const { return codec_.traits().block_elements; }
  [[nodiscard]] std::size_t code_bytes(const Range& run) const { return run.count / block_elements() * block_bytes(); }
  [[nodiscard]] Range all_blocks() { return {0, brought().size() / block_bytes()}; }

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

  // Likewise, of all blocks: in runs of kDecodedAtOnce elements at most.
  template <typename Visit>
  Result<void> for_each_chunk(const Visit& visit) {
    return for_each_run(all_blocks(), [&](const Range& run, std::size_t at) -> Result<void> {
      for (std::size_t done = 0; done < run.count; done += kDecodedAtOnce) {
        const Range chunk{run.first + done, std::min(kDecodedAtOnce, run.count - done)};
        if (auto ok = visit(chunk, at + done / block_elements() * block_bytes()); !ok) return ok;
      }
      return {};
    });
  }

  // The residuals of a chunk whose sum may be not finite: `sent` is this node's own code of it. The values are still what this node
  // brought.
  Result<void> take_back_from(std::span<const float> sums, const Range& chunk, std::span<const std::byte> sent) const {
    if (compress::all_finite(sums)) return {};
    DecodedChunk memory{};
    const std::span decoded = std::span(memory).first(chunk.count);
    if (auto ok = codec_.decode(work().slice_at(chunk.first), sent, decoded); !ok) return ok;
    const auto use = work().residuals_of(chunk);
    take_back(use.values(), sums, decoded, work().of(chunk));
    return {};
  }

 private:
  const Codec& codec_;
  const std::vector<Range>& ranges_;
};

// An all-reduce of blocks, with the owner's stage between its halves.
class Requantised final : public BlockPiece {
 public:
  Requantised(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : BlockPiece(work, coding, buffers, 1) {}

  WorkRequest request() override {
    auto request = shape();
    const Range bytes = request.owned_by(work().place.node, work().place.nodes);
    owned_ = {bytes.first / block_bytes(), bytes.count / block_bytes()};
    if (work().has_feedback(codec())) left_out_ = room(owned_.count * block_elements());
    request.owner_stage = [this](const link::OwnedSegment& segment) { own(segment); };
    request.encoded = {.block_values = block_elements(),
                       .owner_keeps_rest = work().has_feedback(codec()),
                       .recipe = [this](const Range& part) { return recipe_of(part); }};
    return request;
  }

  Result<void> decode(bool first_time) override {
    if (garbage_) return tl::unexpected(*garbage_);
    const bool takes_back = first_time && needs_what_was_sent() && !what_was_sent().empty();
    DecodedChunk memory_of_sums{};
    auto ok = for_each_chunk([&](const Range& chunk, std::size_t at) -> Result<void> {
      const std::span sums = std::span(memory_of_sums).first(chunk.count);
      auto decoded = takes_back ? decode_and_take_back(chunk, at, sums) : decode(chunk, at, work().of(chunk));
      if (!decoded) return garbage_of(decoded.error(), owner_of(at), codec());
      return {};
    });
    if (ok && first_time) keep_what_was_left_out();
    return ok;
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return work().has_feedback(codec()); }

 private:
  Result<void> decode(const Range& run, std::size_t at, std::span<float> out) {
    return codec().decode(work().slice_at(run.first), memory().subspan(at, code_bytes(run)), out);
  }

  // The gradients that were brought are looked at before the sums replace them.
  Result<void> decode_and_take_back(const Range& chunk, std::size_t at, std::span<float> sums) {
    if (auto ok = decode(chunk, at, sums); !ok) return ok;
    if (auto ok = take_back_from(sums, chunk, what_was_sent().subspan(at, code_bytes(chunk))); !ok) return ok;
    std::ranges::copy(sums, work().of(chunk).begin());
    return {};
  }

  // The request without an owner's stage: it decides who owns which blocks.
  [[nodiscard]] WorkRequest shape() {
    auto request =
        WorkRequest::all_reduce(memory().data(), memory().size(), model::DType::kUInt8, model::ReduceOp::kSum);
    request.block = block_bytes();
    return request;
  }

  // The recipe by which a server adds these bytes.
  [[nodiscard]] std::vector<std::byte> recipe_of(const Range& bytes) const {
    const compress::Slice slice = work().slice_at(0);
    compress::SumRecipe recipe{.codec = text_of(codec()), .job = slice.job, .generation = slice.generation, .runs = {}};
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
      left_out = left_out_.subspan((at / block_bytes() - owned_.first) * block_elements(), run.count);
    const std::span<std::byte> out = segment.data.subspan(within, code_bytes(run));
    if (!segment.sum.empty()) {
      const std::span sum = segment.sum.subspan(within / block_bytes() * block_elements(), run.count);
      return encode_sum(codec(), work().slice_at(run.first), sum, out, left_out);
    }
    inputs_.clear();
    for (const std::byte* const input : segment.inputs) inputs_.emplace_back(input + within, code_bytes(run));
    std::size_t node = 0;
    auto ok = codec().combine(work().slice_at(run.first), inputs_, out, left_out, node);
    if (!ok) return garbage_of(ok.error(), node, codec());
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

  Range owned_;                // blocks
  std::span<float> left_out_;  // what encodings of the owned blocks leave out: combine() writes all of it
  std::vector<std::span<const std::byte>> inputs_;
  std::optional<Error> garbage_;
};

// Every node gets the codes of all nodes, and adds what they hold in the order of the nodes. So the sum is not rounded, and no node has
// a rest of it to keep. Whatever the size, or the cut of a transfer would change bits.
class AddedByAll final : public BlockPiece {
 public:
  // With more nodes, each would receive more than the result of an all-reduce.
  static bool is_for(const CodedWork& work, const Coding& coding) {
    return work.place.nodes == 2 && coding.codec->traits().law == compress::Law::kRequantised;
  }

  AddedByAll(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : BlockPiece(work, coding, buffers, work.place.nodes - 1), bytes_(bytes_of(coding)) {}

  WorkRequest request() override {
    others_ = memory();
    auto request = WorkRequest::reduce_by_all(brought().data(), bytes_,
                                              [this](const link::OwnedSegment& segment) { keep(segment); });
    request.block = block_bytes();
    return request;
  }

  Result<void> decode(bool first_time) override {
    const bool takes_back = first_time && work().has_feedback(codec());
    DecodedChunk memory_of_sums{};
    return for_each_chunk([&](const Range& chunk, std::size_t at) {
      const std::span sums = std::span(memory_of_sums).first(chunk.count);
      return takes_back ? add_and_take_back(chunk, at, sums) : add(chunk, at, work().of(chunk));
    });
  }

  [[nodiscard]] std::span<std::byte> brought() override {
    if (own_.empty()) own_ = std::as_writable_bytes(room(bytes_ / sizeof(float) + 1)).first(bytes_);
    return own_;
  }
  [[nodiscard]] std::size_t brought_bytes() const override { return bytes_; }
  void bring_into(std::span<std::byte> place) override { own_ = place; }
  [[nodiscard]] bool needs_what_was_sent() const override { return false; }  // no sum replaces it

 private:
  [[nodiscard]] std::span<std::byte> codes_of(std::size_t node) {
    const std::size_t own = work().place.node;
    return node == own ? own_ : others_.subspan((node < own ? node : node - 1) * bytes_, bytes_);
  }

  // A link's thread calls it. The other nodes' codes are copied, because the inputs are valid during this call alone.
  void keep(const link::OwnedSegment& segment) {
    for (std::size_t node = 0; node < segment.inputs.size(); ++node)
      if (node != work().place.node)
        std::copy_n(segment.inputs[node], segment.data.size(), codes_of(node).subspan(segment.first).begin());
  }

  Result<void> add(const Range& chunk, std::size_t at, std::span<float> sums) {
    const compress::Slice slice = work().slice_at(chunk.first);
    for (std::size_t node = 0; node < work().place.nodes; ++node) {
      const auto code = codes_of(node).subspan(at, code_bytes(chunk));
      const auto ok = node == 0 ? codec().decode(slice, code, sums) : codec().decode_add(slice, code, sums);
      if (!ok) return garbage_of(ok.error(), node, codec());
    }
    return {};
  }

  // The gradients that were brought are looked at before the sums replace them.
  Result<void> add_and_take_back(const Range& chunk, std::size_t at, std::span<float> sums) {
    if (auto ok = add(chunk, at, sums); !ok) return ok;
    if (auto ok = take_back_from(sums, chunk, brought().subspan(at, code_bytes(chunk))); !ok) return ok;
    std::ranges::copy(sums, work().of(chunk).begin());
    return {};
  }

  const std::size_t bytes_;  // of a node's codes
  std::span<std::byte> own_;
  std::span<std::byte> others_;  // the codes of the other nodes, in their order
};

}  // namespace

std::unique_ptr<CodedPiece> requantised_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers) {
  if (AddedByAll::is_for(work, coding)) return std::make_unique<AddedByAll>(work, coding, buffers);
  return std::make_unique<Requantised>(work, coding, buffers);
}

}  // namespace deft::daemon
