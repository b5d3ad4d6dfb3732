#include "daemon/channel/coded_transfer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace deft::daemon {
namespace {

using compress::Codec;
using link::Range;
using link::WorkRequest;

std::size_t elements_of(std::span<const Range> ranges) {
  std::size_t count = 0;
  for (const Range& range : ranges) count += range.count;
  return count;
}

tl::unexpected<Error> garbage_of(const Error& error, std::size_t node, const Codec& codec) {
  return fail(ErrorKind::kViolation,
              "node " + std::to_string(node) + " sent what " + std::string(codec.traits().name) +
                  " cannot decode: " + error.message(),
              "see the log of that node, and check its memory and network");
}

}  // namespace

// What all pieces of a transfer work on.
struct CodedTransfer::Work {
  std::shared_ptr<const Codings> codings;
  std::span<float> values;
  NodeOfAll place;

  [[nodiscard]] std::span<float> of(const Range& range) const { return values.subspan(range.first, range.count); }
  [[nodiscard]] compress::Slice slice_at(std::size_t first) const {
    compress::Slice slice = codings->slice;
    slice.first += first;
    return slice;
  }
  [[nodiscard]] bool has_feedback(const Codec& codec) const {
    return codings->residuals != nullptr && codec.traits().uses_feedback;
  }
  [[nodiscard]] Residuals::Use residuals_of(const Range& range) const {
    return codings->residuals->use(codings->slice.first + range.first, range.count);
  }
  // Gives the bytes of the encoding.
  Result<std::size_t> encode(const Codec& codec, const Range& range, std::span<std::byte> out) const {
    if (!has_feedback(codec)) return codec.encode(slice_at(range.first), of(range), out);
    const auto use = residuals_of(range);
    return codec.encode_with_feedback(slice_at(range.first), of(range), use.values(), out);
  }
};

class CodedTransfer::Piece {
 public:
  Piece(Work work, BufferPool& buffers, std::size_t bytes)
      : work_(std::move(work)), pool_(buffers), bytes_(bytes), buffer_(buffers.take(bytes)) {}
  virtual ~Piece() { pool_.give_back(std::move(buffer_)); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  virtual Result<void> encode() = 0;
  virtual WorkRequest request() = 0;
  virtual Result<void> decode(bool first_time) = 0;
  // What this node brings.
  [[nodiscard]] virtual std::span<std::byte> brought() { return memory(); }

 protected:
  [[nodiscard]] const Work& work() const { return work_; }
  [[nodiscard]] std::span<std::byte> memory() { return std::span(buffer_).first(bytes_); }

 private:
  const Work work_;
  BufferPool& pool_;
  const std::size_t bytes_;
  std::vector<std::byte> buffer_;
};

// An all-reduce of blocks, with the owner's stage between its halves.
class CodedTransfer::Requantised final : public Piece {
 public:
  Requantised(const Work& work, const Coding& coding, BufferPool& buffers)
      : Piece(work, buffers, blocks_of(coding) * coding.codec->traits().block_bytes),
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
    return request;
  }

  Result<void> decode(bool first_time) override {
    if (garbage_) return tl::unexpected(*garbage_);
    auto ok = for_each_run(all_blocks(), [this](const Range& run, std::size_t at) -> Result<void> {
      auto decoded = codec_.decode(work().slice_at(run.first), memory().subspan(at, code_bytes(run)), work().of(run));
      if (!decoded) return garbage_of(decoded.error(), owner_of(at), codec_);
      return {};
    });
    if (ok && first_time) keep_what_was_left_out();
    return ok;
  }

 private:
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
    inputs_.clear();
    for (const std::byte* const input : segment.inputs) inputs_.emplace_back(input + within, code_bytes(run));
    std::span<float> left_out;
    if (is_owned && !left_out_.empty())
      left_out = std::span(left_out_).subspan((at / block_bytes() - owned_.first) * block_elements(), run.count);
    std::size_t node = 0;
    auto ok = codec_.combine(work().slice_at(run.first), inputs_, segment.data.subspan(within, code_bytes(run)),
                             left_out, node);
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

// An all-gather: every node adds the encodings of all. Each encoding stands behind its length.
class CodedTransfer::Sparse final : public Piece {
 public:
  Sparse(const Work& work, const Coding& coding, BufferPool& buffers)
      : Piece(work, buffers, block_bytes_of(work, coding) * work.place.nodes),
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

  Result<void> decode(bool /*first_time*/) override {
    for (const Range& range : ranges_) std::ranges::fill(work().of(range), 0.0F);
    for (std::uint32_t node = 0; node < work().place.nodes; ++node)
      if (auto ok = add_from(memory().subspan(node * block_bytes_, block_bytes_)); !ok)
        return garbage_of(ok.error(), node, codec_);
    return {};
  }

  [[nodiscard]] std::span<std::byte> brought() override {
    return memory().subspan(work().place.node * block_bytes_, block_bytes_);
  }

 private:
  static constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

  static std::size_t block_bytes_of(const Work& work, const Coding& coding) {
    const std::uint64_t generation = work.codings->slice.generation;
    std::size_t bytes = 0;
    for (const Range& range : coding.ranges)
      bytes += kLengthBytes + coding.codec->encoded_bytes_at(generation, range.count);
    return bytes;
  }

  [[nodiscard]] std::size_t room_of(const Range& range) const {
    return codec_.encoded_bytes_at(work().codings->slice.generation, range.count);
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

// What travels as it is, packed into one message: first the exact elements, then those that take residuals along.
class CodedTransfer::Exact final : public Piece {
 public:
  Exact(const Work& work, BufferPool& buffers)
      : Piece(work, buffers, (elements_of(work.codings->exact) + elements_of(work.codings->settled)) * sizeof(float)) {}

  Result<void> encode() override {
    for_each([this](const Range& range, std::byte* at) {
      std::memcpy(at, work().of(range).data(), range.count * sizeof(float));
    });
    std::byte* at = memory().data() + elements_of(work().codings->exact) * sizeof(float);
    for (const Range& range : work().codings->settled) {
      settle(range, {reinterpret_cast<float*>(at), range.count});
      at += range.count * sizeof(float);
    }
    return {};
  }

  WorkRequest request() override {
    return WorkRequest::all_reduce(memory().data(), memory().size() / sizeof(float), model::DType::kFloat32,
                                   model::ReduceOp::kSum);
  }

  Result<void> decode(bool /*first_time*/) override {
    for_each([this](const Range& range, const std::byte* at) {
      std::memcpy(work().of(range).data(), at, range.count * sizeof(float));
    });
    return {};
  }

 private:
  template <typename Visit>
  void for_each(const Visit& visit) {
    std::byte* at = memory().data();
    for (const auto* const ranges : {&work().codings->exact, &work().codings->settled})
      for (const Range& range : *ranges) {
        visit(range, at);
        at += range.count * sizeof(float);
      }
  }

  // A gradient that is not finite is no update, so the residual waits for the next one.
  void settle(const Range& range, std::span<float> values) const {
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
    const auto use = work().residuals_of(range);
    const std::span<float> residuals = use.values();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += std::exchange(residuals[i], 0.0F);
  }
};

CodedTransfer::CodedTransfer(const std::shared_ptr<const Codings>& codings, std::span<float> values, NodeOfAll place,
                             BufferPool& buffers)
    : codings_(codings), values_(values) {
  const Work work{codings, values, place};
  for (const Coding& coding : codings->coded) {
    if (coding.codec->traits().law == compress::Law::kSparse)
      pieces_.push_back(std::make_unique<Sparse>(work, coding, buffers));
    else
      pieces_.push_back(std::make_unique<Requantised>(work, coding, buffers));
  }
  if (!codings->exact.empty() || !codings->settled.empty()) pieces_.push_back(std::make_unique<Exact>(work, buffers));
}

CodedTransfer::~CodedTransfer() = default;

Result<void> CodedTransfer::encode() {
  for (const auto& piece : pieces_)
    if (auto ok = piece->encode(); !ok) return ok;
  return {};
}

std::size_t CodedTransfer::wire_bytes() const {
  std::size_t bytes = 0;
  for (const auto& piece : pieces_) bytes += piece->brought().size();
  return bytes;
}

void CodedTransfer::keep(ReplayBuffer& kept) const {
  kept.bytes = wire_bytes();
  kept.data = std::make_unique_for_overwrite<std::byte[]>(kept.bytes);
  std::byte* at = kept.data.get();
  for (const auto& piece : pieces_) at = std::ranges::copy(piece->brought(), at).out;
  kept.filled = true;
}

Result<void> CodedTransfer::restore(const ReplayBuffer& kept) {
  if (kept.bytes != wire_bytes())
    return fail(ErrorKind::kInternal,
                "a replay of " + std::to_string(kept.bytes) + " bytes, in place of " + std::to_string(wire_bytes()));
  const std::byte* at = kept.data.get();
  for (const auto& piece : pieces_) {
    const std::span<std::byte> own = piece->brought();
    std::memcpy(own.data(), at, own.size());
    at += own.size();
  }
  return {};
}

std::vector<WorkRequest> CodedTransfer::requests() {
  std::vector<WorkRequest> requests;
  for (const auto& piece : pieces_) requests.push_back(piece->request());
  return requests;
}

Result<void> CodedTransfer::decode(bool first_time) {
  for (const auto& piece : pieces_)
    if (auto ok = piece->decode(first_time); !ok) return ok;
  for (const Range& range : codings_->padding) std::ranges::fill(values_.subspan(range.first, range.count), 0.0F);
  return {};
}

}  // namespace deft::daemon
