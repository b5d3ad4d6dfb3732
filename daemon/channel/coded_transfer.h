// One transfer whose gradients are encoded: the contribution of this node, its work as an owner, and the result.
//
//   CodedTransfer coded(codings, arena, {node, nodes}, buffers);
//   coded.encode(&replay_buffer);            // gradients and residuals -> codes; the codecs' loss becomes the residuals
//   coded.keep(replay_buffer);               // or, in a replay, coded.restore(replay_buffer) in place of both; or
//                                            // coded.encode() and coded.keep_own() if there is no replay buffer
//   for (auto& request : coded.requests()) link.submit(request);
//   ... all have completed ...
//   if (coded.has_second_requests())
//     for (auto& request : coded.second_requests()) link.submit(request);      // likewise
//   coded.decode(true);                      // sums of all nodes -> arena
//
// Each codec of the transfer makes one request. Its law of summation (core/compress/codec.h) says which one:
// - requantised and voted: an all-reduce of blocks. The owner of a block decodes the blocks of all nodes, adds them and
//   encodes the sum. What this second encoding leaves out goes into the owner's own residuals: sums are linear.
// - requantised between two nodes: each node gets the blocks of the other one, decodes both and adds them. Nothing is encoded twice, and
//   as many bytes travel as in an all-reduce.
// - sparse: an all-gather. Every node decodes and adds the encodings of all nodes, in their order. At so many nodes that this is more
//   than float32 would be, an all-reduce of what the encodings hold.
// - low-rank: an all-reduce of one factor of each matrix, as float32. All nodes have the other one (ACP-SGD), or a second all-reduce,
//   which depends on the result of the first, makes it (PowerSGD).
// What travels as it is makes one more request: an all-reduce of the arena's type.
//
// A transfer of float16 or bfloat16 is widened to float32 first. At the end the sums are rounded to the arena's type, the same on all
// nodes. One node keeps the loss of this rounding in its residuals; the element's place says which node. A finite sum stays finite:
// beyond 65504, float16 has its largest number, and the residual has the rest.
//
// If a block of the sum is not finite on any node, it decodes to NaN on all, and no node's residuals of it change. So what a node sends
// is kept until then.
//
// A peer's garbage is found when it is decoded, and the error names the node. The channel's thread, but for the owner's stage,
// which the link's threads run, one segment at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mix64.h"
#include "core/base/status.h"
#include "core/link/work_request.h"
#include "daemon/channel/buffer_pool.h"
#include "daemon/channel/coded_piece.h"
#include "daemon/channel/coding.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

// True if the loss of this encoded transfer of a link is measured, which takes a pass over its data: the first one, and one of 16. They
// keep no time, because steps have the same transfers in the same order.
constexpr bool is_measured(std::uint64_t number) { return number == 0 || mix64(number) % 16 == 0; }

class CodedTransfer {
 public:
  // `arena`: the sum over the local workers, of the codings' type. `loss`: encode() adds what it leaves out; null: that is not
  // measured. All outlive this object.
  CodedTransfer(const std::shared_ptr<const Codings>& codings, std::span<std::byte> arena, NodeOfAll place,
                BufferPool& buffers, CodecLoss* loss = nullptr);
  ~CodedTransfer();
  CodedTransfer(const CodedTransfer&) = delete;
  CodedTransfer& operator=(const CodedTransfer&) = delete;

  // `room`: the buffer that keep() will fill. Codes that the link does not change are written straight into it. Null: there is none.
  Result<void> encode(ReplayBuffer* room = nullptr);
  // What this node brings, encoded. restore() gives kInternal if the buffer is of another transfer. The buffer outlives this object.
  void keep(ReplayBuffer& kept);
  Result<void> restore(ReplayBuffer& kept);
  void keep_own();

  // The requests stand in the same order on all nodes, and use this object until they have completed.
  [[nodiscard]] std::vector<link::WorkRequest> requests();
  // Call it once, after the first requests have completed. Their results are kept as well.
  [[nodiscard]] bool has_second_requests() const;
  [[nodiscard]] std::vector<link::WorkRequest> second_requests();
  [[nodiscard]] std::size_t wire_bytes() const;  // that this node brings

  // `first_time`: what owners left out is added to the residuals. False in a replay for the other nodes' sake.
  Result<void> decode(bool first_time);

 private:
  void bring_into(std::byte* kept);
  // visit(piece, offset): each piece, and where a replay buffer keeps it: behind the one before, and where a float may lie. Gives the bytes
  // of all. Whoever reads or writes the buffer goes by this.
  template <typename Visit>
  std::size_t for_kept(const Visit& visit) const;
  [[nodiscard]] std::size_t kept_bytes() const;
  [[nodiscard]] Result<void> widen();
  [[nodiscard]] Result<void> round(bool first_time);
  [[nodiscard]] Result<void> round_range(const link::Range& range, bool keeps_rest);

  BufferPool& buffers_;
  std::vector<std::byte> wide_memory_;  // empty if the arena has float32
  const CodedWork work_;
  std::vector<std::unique_ptr<CodedPiece>> pieces_;
  ReplayBuffer* kept_ = nullptr;
  bool made_second_ = false;
};

}  // namespace deft::daemon
