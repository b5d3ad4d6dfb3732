// All-reduces over a mesh: a direct reduce-scatter and all-gather, without a handshake for any message, and with the next
// operations on their way while the results of the last one still come.
//
// The elements are cut into one slice a node. In round k every node sends the k-th segment of each slice to the slice's
// owner, which reduces the segments of all nodes in one pass, in the order of the nodes, and sends the result back to
// all. So every byte crosses the network as often as in a ring, but after two latencies instead of 2 (nodes - 1);
// 16-bit types are rounded once; and the bits of the result depend neither on the size of a part nor on who owns a
// slice. What is small is sent whole to everyone, and everyone reduces: one latency.
//
// The rounds of all operations make one sequence. Segments arrive in a scratch of kWindow slots for each peer, which is
// registered for good. A slot is free again when its owner's result of that round has arrived, so results are the only
// acknowledgements. Results go straight into the caller's memory, which is registered before the first segment leaves,
// hence before any result can come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/link/slices.h"
#include "core/model/dtype.h"

namespace gloo::transport {
class Buffer;
}

namespace deft::link::gloo_backend {

class Mesh;

class AllReduce {
 public:
  static constexpr std::size_t kDepth = 3;  // operations under way

  explicit AllReduce(Mesh& mesh);
  ~AllReduce();

  // finish() is for the oldest of those that were started and not finished; there may be kDepth of them. Where gloo throws,
  // these throw a PeerFailure. After that the mesh must be poisoned; then no data is touched any more.
  void start(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
  void finish();
  [[nodiscard]] bool idle() const { return operations_.empty(); }

 private:
  static constexpr std::uint64_t kWindow = 4;
  static constexpr std::uint64_t kExchangeSlots = 2 * kDepth;
  using BufferPtr = std::unique_ptr<gloo::transport::Buffer>;

  // Where the segments of one peer arrive.
  struct Inbox {
    std::vector<std::byte> scratch;  // kWindow slots for rounds
    std::vector<std::byte> small;    // kExchangeSlots for operations that are sent whole
    BufferPtr rounds;
    BufferPtr exchanges;
  };

  // What an operation sends to and gets from one peer.
  struct Peer {
    BufferPtr segment_send;    // from the caller's memory into the peer's inbox
    BufferPtr result_send;     // from the caller's memory into the same place there
    BufferPtr result_receive;  // into the caller's memory
    int segments_unsent = 0;   // sends that were not waited for yet
    int results_unsent = 0;
  };

  struct Operation {
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t element = 1;  // bytes
    model::DType dtype{};
    model::ReduceOp op{};
    bool whole = false;             // sent whole to everyone
    Slices slices;                  // without rounds where there is no element, or all is sent whole
    std::uint64_t sent = 0;         // rounds whose segments have gone
    std::uint64_t first_round = 0;  // in the sequence of all; of what is sent whole, its number among those
    std::vector<Peer> peers;        // by node; this node's own is unused
  };

  void cut(Operation& operation) const;
  void connect(Operation& operation, std::uint64_t number);
  void send_whole(Operation& operation);
  void finish_whole(Operation& operation);
  void finish_rounds(Operation& operation);
  void fill_window();
  void send_segments(Operation& operation, std::uint64_t round);
  void send_results(Operation& operation, std::uint64_t round);
  void receive_results(Operation& operation, std::uint64_t round);
  void await_sends(Operation& operation);
  void reduce(const Operation& operation, Range range, std::size_t slot);
  [[nodiscard]] std::size_t slot_of(const Operation& operation, std::uint64_t round) const;
  template <typename Visit>
  void each_peer(Visit visit) const;

  Mesh& mesh_;
  const std::size_t slot_bytes_;
  const std::size_t whole_bytes_;  // what is sent whole, at most
  std::vector<Inbox> inboxes_;     // by node; this node's own is unused
  std::vector<const std::byte*> inputs_;

  std::deque<Operation> operations_;  // under way
  std::uint64_t started_ = 0;         // the same on all nodes, as is what follows
  std::uint64_t started_whole_ = 0;
  std::uint64_t started_rounds_ = 0;
  std::uint64_t acknowledged_ = 0;  // rounds whose results have all come
};

}  // namespace deft::link::gloo_backend
