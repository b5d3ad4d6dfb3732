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
//
// gloo's waits cannot be interrupted, so two threads wait for peers, each for what comes in its own order: one reduces
// segments and sends results, the other takes results and sends the segments for which slots are free again. So neither
// waits for what the other one could do, and the caller can start an operation while older ones are under way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/link/gloo/mesh.h"
#include "core/link/slices.h"
#include "core/model/dtype.h"

namespace gloo::transport {
class Buffer;
}

namespace deft::link::gloo_backend {

class AllReduce {
 public:
  static constexpr std::size_t kDepth = 3;  // operations under way

  explicit AllReduce(Mesh& mesh);
  ~AllReduce();  // nothing is under way, or the mesh is poisoned

  // One thread's, but wake(). finish() waits for the oldest of those that were started and not finished, of which there may
  // be kDepth; so does finish_next(), which gives false where wake() came and that one has not ended. Where gloo throws,
  // they throw a PeerFailure. After that the mesh must be poisoned, and halt() called; then no data is touched any more.
  void start(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
  void finish();
  [[nodiscard]] bool finish_next();
  void wake();
  void halt();
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
    bool reduced = false;           // and all results have been sent
    bool ended = false;             // nothing of it is under way any more
    std::uint64_t sent = 0;         // rounds whose segments have gone
    std::uint64_t first_round = 0;  // in the sequence of all; of what is sent whole, its number among those
    std::vector<Peer> peers;        // by node; this node's own is unused

    [[nodiscard]] bool has_elements() const { return count > 0; }
    [[nodiscard]] bool has_rounds() const { return !whole; }
  };

  void cut(Operation& operation) const;
  void connect(Operation& operation, std::uint64_t number);
  void begin(Operation& operation);
  void send_whole(Operation& operation);
  void fill_window();
  void send_segments(Operation& operation, std::uint64_t round);
  void await_sends(Operation& operation);

  void run(std::condition_variable& work, bool (Operation::*needs)() const, void (AllReduce::*handle)(Operation&));
  void end_by(const PeerFailure& failure);
  [[nodiscard]] bool is_over() const { return failure_ || halted_; }  // for the threads
  Operation* await_operation(std::uint64_t& next, std::condition_variable& work, bool (Operation::*needs)() const);
  void set(bool Operation::*flag, Operation& operation, std::condition_variable& awaits);
  void reduce_operation(Operation& operation);
  void collect_operation(Operation& operation);
  void reduce_round(Operation& operation, std::uint64_t round);
  void receive_results(Operation& operation, std::uint64_t round);
  void reduce(const Operation& operation, Range range, std::size_t slot);
  void send_results(Operation& operation, std::uint64_t round);
  [[nodiscard]] std::size_t slot_of(const Operation& operation, std::uint64_t round) const;
  template <typename Visit>
  void each_peer(Visit visit) const;

  Mesh& mesh_;
  const std::size_t slot_bytes_;
  const std::size_t whole_bytes_;         // what is sent whole, at most
  std::vector<Inbox> inboxes_;            // by node; this node's own is unused
  std::vector<const std::byte*> inputs_;  // the reducing thread's

  std::uint64_t started_ = 0;  // these two are the caller's, and the same on all nodes
  std::uint64_t started_whole_ = 0;

  std::mutex mutex_;                                // of what follows, but only the caller adds and removes operations
  std::condition_variable to_reduce_, to_collect_;  // for the threads
  std::condition_variable news_;                    // for the caller
  std::deque<Operation> operations_;                // under way; those that are not ended stay where they are
  std::uint64_t finished_ = 0;
  std::uint64_t started_rounds_ = 0;
  std::uint64_t acknowledged_ = 0;  // rounds whose results have all come
  std::optional<PeerFailure> failure_;
  bool woken_ = false;
  bool halted_ = false;

  std::thread reducing_;
  std::thread collecting_;
};

}  // namespace deft::link::gloo_backend
