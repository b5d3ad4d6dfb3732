// All-reduce over a mesh: a direct reduce-scatter and all-gather, without a handshake for any message.
//
// The elements are cut into one slice a node. In round k every node sends the k-th segment of each slice to the slice's
// owner, which reduces the segments of all nodes in one pass, in the order of the nodes, and sends the result back to
// all. So every byte crosses the network as often as in a ring, but after two latencies instead of 2 (nodes - 1);
// 16-bit types are rounded once; and the bits of the result depend neither on the size of a part nor on who owns a
// slice. What is small is sent whole to everyone, and everyone reduces: one latency.
//
// Segments arrive in a scratch of kWindow slots for each peer, which is registered for good. A slot is free again when
// its owner's result of an earlier round has arrived, so results are the only acknowledgements. Results go straight
// into the caller's memory, which is registered before the first segment leaves, hence before any result can come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/dtype.h"

namespace gloo::transport {
class Buffer;
}

namespace deft::link::gloo_backend {

class Mesh;

class AllReduce {
 public:
  explicit AllReduce(Mesh& mesh);
  ~AllReduce();

  // Throws what gloo throws. After that the mesh is poisoned, and `data` is not touched any more.
  void run(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);

  // The peer that the running operation waits for, or waited for when it failed.
  [[nodiscard]] std::uint32_t current_peer() const { return current_peer_; }

 private:
  static constexpr std::uint64_t kWindow = 3;
  using BufferPtr = std::unique_ptr<gloo::transport::Buffer>;

  // What one peer sends to and gets from us.
  struct Peer {
    std::vector<std::byte> scratch;  // kWindow slots
    BufferPtr scratch_receive;
    BufferPtr segment_send;    // from the caller's memory into the peer's scratch
    BufferPtr result_send;     // from the caller's memory into the same place there
    BufferPtr result_receive;  // into the caller's memory
    int segments_unsent = 0;   // sends that were not waited for yet
    int results_unsent = 0;
  };

  // The running operation.
  struct Work {
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t element = 1;  // bytes
    model::DType dtype{};
    model::ReduceOp op{};
    std::size_t slice = 0;    // elements of each slice but the last ones
    std::size_t segment = 0;  // elements of each segment but a slice's last one
  };
  struct Range {
    std::size_t first = 0;  // elements
    std::size_t count = 0;
  };

  void exchange();
  void scatter_and_gather();
  void register_segments(Peer& peer);
  void register_results();
  void send_segments(std::uint64_t round);
  void send_results(std::uint64_t round);
  void receive_results(std::uint64_t round);
  void reduce_round(Range range, std::uint64_t round);
  void await_sends();
  void release();
  [[nodiscard]] Range segment_of(std::uint32_t owner, std::uint64_t round) const;
  [[nodiscard]] std::size_t slot_offset(std::uint64_t round) const;
  template <typename Visit>
  void each_peer(Visit visit);

  Mesh& mesh_;
  const std::size_t slot_bytes_;
  std::vector<Peer> peers_;  // by node; this node's own is unused
  std::vector<const std::byte*> inputs_;
  Work work_;
  std::uint64_t rounds_before_ = 0;  // of all operations so far; the same on all nodes
  std::uint64_t operations_ = 0;
  std::uint32_t current_peer_ = 0;
};

}  // namespace deft::link::gloo_backend
