// The content of one request of an encoded transfer: encodings of one codec, or gradients that travel as they are.
//
//   auto piece = requantised_piece(work, coding, buffers);
//   piece->encode();
//   link.submit(piece->request());             // and wait until it has completed
//   if (piece->has_second_request()) {
//     piece->encode_second(false);
//     link.submit(piece->second_request());    // likewise
//   }
//   piece->decode(true);
//
// CodedTransfer uses it, and explains the parameters. The channel's thread, but for the owner's stage of a request.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/link/work_request.h"
#include "daemon/channel/buffer_pool.h"
#include "daemon/channel/coding.h"

namespace deft::daemon {

struct NodeOfAll {
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
};

// What all pieces of a transfer work on.
struct CodedWork {
  std::shared_ptr<const Codings> codings;
  std::span<float> values;  // of float32, these are the arena's own
  NodeOfAll place;
  CodecLoss* loss = nullptr;        // null: it is not measured. Else encode() adds to it
  std::span<std::byte> arena = {};  // the same elements, as they lie there

  [[nodiscard]] std::span<float> of(const link::Range& range) const { return values.subspan(range.first, range.count); }
  [[nodiscard]] std::size_t element_bytes() const { return model::dtype_bytes(codings->dtype); }
  [[nodiscard]] std::span<std::byte> in_arena(const link::Range& range) const {
    return arena.subspan(range.first * element_bytes(), range.count * element_bytes());
  }
  [[nodiscard]] compress::Slice slice_at(std::size_t first) const {
    compress::Slice slice = codings->slice;
    slice.first += first;
    return slice;
  }
  [[nodiscard]] bool has_feedback(const compress::Codec& codec) const {
    return codings->residuals != nullptr && codec.traits().uses_feedback;
  }
  [[nodiscard]] Residuals::Use residuals_of(const link::Range& range) const {
    return codings->residuals->use(codings->slice.first + range.first, range.count);
  }
  // Gives the bytes of the encoding.
  [[nodiscard]] Result<std::size_t> encode(const compress::Codec& codec, const link::Range& range,
                                           std::span<std::byte> out) const;
  // Restores the residuals of `ranges` where the sum is not finite: they become what they were before this node sent `sent`. `sums` and
  // `sent` have the elements of one range after the other. The values are still what this node brought.
  void take_back_where_not_finite(const std::vector<link::Range>& ranges, std::span<const float> sums,
                                  std::span<const float> sent) const;
};

class CodedPiece {
 public:
  CodedPiece(CodedWork work, BufferPool& buffers, std::size_t bytes)
      : work_(std::move(work)), pool_(buffers), bytes_(bytes) {}
  virtual ~CodedPiece() {
    pool_.give_back(std::move(buffer_));
    pool_.give_back(std::move(own_copy_));
    pool_.give_back(std::move(room_));
  }
  CodedPiece(const CodedPiece&) = delete;
  CodedPiece& operator=(const CodedPiece&) = delete;

  virtual Result<void> encode() = 0;
  virtual link::WorkRequest request() = 0;
  // A second request depends on the result of the first one. `is_restored`: its content stands in brought_second() already.
  [[nodiscard]] virtual bool has_second_request() const { return false; }
  virtual void encode_second(bool /*is_restored*/) {}
  virtual link::WorkRequest second_request() { return {}; }
  virtual Result<void> decode(bool first_time) = 0;
  // What this node brings.
  [[nodiscard]] virtual std::span<std::byte> brought() { return memory(); }
  [[nodiscard]] virtual std::size_t brought_bytes() const { return bytes_; }
  // Call it before encode() or in place of it: what this node brings is wanted in `place`, which outlives the piece. A piece whose codes no
  // link changes has them there and nowhere else.
  virtual void bring_into(std::span<std::byte> /*place*/) {}
  [[nodiscard]] virtual std::span<std::byte> brought_second() { return {}; }  // the end of brought()
  // encode() has found that the arena is the message: the link works on it, and no residual was taken.
  [[nodiscard]] virtual bool is_in_place() const { return false; }
  // True if decode() has to know what this node has sent, which the sum replaces.
  [[nodiscard]] virtual bool needs_what_was_sent() const = 0;
  // A copy of what this node brings, which outlives the piece.
  void sent(std::span<const std::byte> copy) { sent_ = copy; }
  void keep_own() {
    if (!needs_what_was_sent()) return;
    own_copy_ = pool_.take(bytes_);
    std::memcpy(own_copy_.data(), memory().data(), bytes_);
    sent_ = std::span(own_copy_).first(bytes_);
  }

 protected:
  [[nodiscard]] const CodedWork& work() const { return work_; }
  // Taken with the first call.
  [[nodiscard]] std::span<std::byte> memory() {
    if (buffer_.size() < bytes_) buffer_ = pool_.take(bytes_);
    return std::span(buffer_).first(bytes_);
  }
  // More memory, with any content, until the next call.
  [[nodiscard]] std::span<float> room(std::size_t floats) {
    if (room_.size() < floats * sizeof(float)) room_ = pool_.take(floats * sizeof(float));
    return {reinterpret_cast<float*>(room_.data()), floats};
  }
  [[nodiscard]] std::span<const std::byte> what_was_sent() const { return sent_; }  // empty: nobody has kept it

 private:
  const CodedWork work_;
  BufferPool& pool_;
  const std::size_t bytes_;
  std::vector<std::byte> buffer_, own_copy_, room_;
  std::span<const std::byte> sent_;
};

std::size_t elements_of(std::span<const link::Range> ranges);
// A message of float32.
inline std::span<const float> floats_of(std::span<const std::byte> message) {
  return {reinterpret_cast<const float*>(message.data()), message.size() / sizeof(float)};
}
// kViolation: node `node` has sent bytes that the codec cannot decode, as `error` says.
tl::unexpected<Error> garbage_of(const Error& error, std::size_t node, const compress::Codec& codec);

// Blocks of a codec, by the law of requantised or voted sums.
std::unique_ptr<CodedPiece> requantised_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers);
// Sparse encodings: gathered, or summed as float32 at so many nodes that this is less.
std::unique_ptr<CodedPiece> sparse_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers);
// Factors of matrices, summed as float32.
std::unique_ptr<CodedPiece> low_rank_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers);
// What travels as it is, without and with residuals, in the order of the arena.
std::unique_ptr<CodedPiece> exact_piece(const CodedWork& work, BufferPool& buffers);

}  // namespace deft::daemon
