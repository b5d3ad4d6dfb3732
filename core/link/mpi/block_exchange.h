// Broadcasts and all-gathers of an MPI link, over its transport: every node sends its block to all others, in pieces of a slot's
// length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/link/mpi/transport.h"
#include "core/link/work_request.h"

namespace deft::link::mpi_backend {

class BlockExchange {
 public:
  explicit BlockExchange(Transport& transport) : transport_(transport) {}

  // Of `request`, bytes[node] of each node, one behind the other; false when the transport has failed. Nothing else may be under way.
  bool share(const WorkRequest& request, std::span<const std::size_t> bytes);

 private:
  static constexpr Stream kStream = Stream::kSegments;
  static constexpr std::size_t kAhead = kStreamSlots;  // pieces that are sent before the first is waited for

  bool expect_pieces(std::span<const std::size_t> bytes);
  struct Block {  // of a node
    std::byte* data;
    std::size_t bytes;
  };
  bool receive_piece(const WorkRequest& request, std::uint32_t peer, const Block& block, std::size_t piece);
  bool send_piece(const WorkRequest& request, const Block& block, std::size_t piece);
  [[nodiscard]] std::size_t piece_bytes(std::size_t bytes, std::size_t piece) const;
  template <typename Visit>
  bool each_peer(Visit visit);

  Transport& transport_;
  std::vector<std::size_t> cursors_;  // by node: the next piece to expect
  std::uint32_t tag_ = 0;
};

}  // namespace deft::link::mpi_backend
