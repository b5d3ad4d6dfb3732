// The collectives of an MPI link, over its carrier. All-reduce is a direct reduce-scatter and all-gather, as gloo's is, with
// the same bits: the segments of all nodes are reduced in one pass, in the order of the nodes.
//
// The elements are cut into one slice a node, and slices into segments of a slot's length. What a node sends to another is
// one stream: the first kAhead segments of the other's slice, then in turns the result of a segment of its own slice and
// the next segment of the other's. Both sides know the lengths, so every message is expected long before it is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/link/mpi/carrier.h"
#include "core/model/dtype.h"

namespace deft::link::mpi_backend {

class Collectives {
 public:
  explicit Collectives(Carrier& carrier) : carrier_(carrier), cursors_(carrier.nodes()) {}

  // All return false when the carrier has failed.
  bool all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
  // Every node's block to all others; bytes[node] each, one behind the other.
  bool share_blocks(std::byte* data, std::span<const std::size_t> bytes);

 private:
  static constexpr std::size_t kAhead = 4;

  // The running operation.
  struct Work {
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t element = 1;  // bytes
    model::DType dtype{};
    model::ReduceOp op{};
    std::size_t slice = 0;    // elements of each slice but the last ones
    std::size_t segment = 0;  // elements of each segment but a slice's last one
    std::size_t rounds = 0;
  };
  struct Range {
    std::size_t first = 0;  // elements
    std::size_t count = 0;
  };
  // A message of a stream.
  struct Item {
    bool is_result = false;
    std::size_t round = 0;
  };

  bool send(std::uint32_t peer, const std::byte* data, std::size_t bytes);
  bool exchange_whole();
  bool scatter_and_gather();
  bool expect_ahead();
  bool send_segments(std::size_t round);
  bool send_results(std::size_t round);
  bool reduce_range(Range mine);
  bool receive_results(std::size_t round);
  bool expect_pieces(std::span<const std::size_t> bytes);
  bool receive_piece(std::uint32_t peer, std::byte* block, std::size_t bytes, std::size_t piece);
  bool send_piece(const std::byte* block, std::size_t bytes, std::size_t piece);
  [[nodiscard]] static Item item(std::size_t index);
  [[nodiscard]] Range segment_of(std::uint32_t owner, std::size_t round) const;
  template <typename Visit>
  bool each_peer(Visit visit);

  Carrier& carrier_;
  std::vector<std::size_t> cursors_;  // by node: the next message of its stream to expect
  std::vector<const std::byte*> inputs_;
  Work work_;
  std::uint64_t operations_ = 0;
};

}  // namespace deft::link::mpi_backend
