// All-reduces of an MPI link, over its carrier: a direct reduce-scatter and all-gather, as gloo's is, with the same bits (the
// segments of all nodes are reduced in one pass, in the order of the nodes), and with the next operations on their way while
// the results of the last one still come.
//
// The elements are cut into one slice a node, and slices into segments of a slot's length. In round k every node sends the
// k-th segment of each slice to the slice's owner, which reduces it and sends the result back to all. What is small is sent
// whole to everyone, and everyone reduces: a round without results. The rounds of all operations make one sequence; the
// segments of kWindow rounds leave before the first of them is reduced. Both sides know the lengths, so a message is
// expected before it is sent, where the receiver has started the operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/link/mpi/carrier.h"
#include "core/link/slices.h"
#include "core/model/dtype.h"

namespace deft::link::mpi_backend {

class AllReduce {
 public:
  static constexpr std::size_t kDepth = 3;  // operations under way

  explicit AllReduce(Carrier& carrier) : carrier_(carrier), cursors_(carrier.nodes()) {}

  // finish() is for the oldest of those that were started and not finished; there may be kDepth of them. Both return false
  // when the carrier has failed. Only start() and finish() touch the data.
  bool start(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
  bool finish();

 private:
  // Segments that leave before the first of them is reduced. To send one, a node has reduced what came kWindow rounds before;
  // so its peers had sent that, and had told MPI where this one goes: to start an operation waits for nobody.
  static constexpr std::uint64_t kWindow = kStreamSlots;

  struct Operation {
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t element = 1;  // bytes
    model::DType dtype{};
    model::ReduceOp op{};
    std::uint32_t tag = 0;
    bool whole = false;                // sent whole to everyone
    Slices slices;                     // without rounds where there is no element
    std::uint64_t sent = 0;            // rounds whose segments have gone
    std::uint64_t first_round = 0;     // in the sequence of all
    std::vector<std::uint64_t> given;  // by node: the carrier's messages when the last segment had gone
  };
  // The next message of a stream that MPI is to be told of.
  struct Cursor {
    std::uint64_t operation = 0;
    std::uint64_t round = 0;
  };

  void cut(Operation& operation) const;
  bool finish_whole(Operation& operation);
  bool finish_rounds(Operation& operation);
  bool expect_ahead();
  bool expect_of(std::uint32_t peer, Stream stream);
  bool fill_window();
  bool send_segments(Operation& operation, std::uint64_t round);
  bool send_results(const Operation& operation, std::uint64_t round);
  bool receive_results(const Operation& operation, std::uint64_t round);
  bool reduce(const Operation& operation, Range mine);
  bool send(const Operation& operation, std::uint32_t peer, Stream stream, Range range);
  [[nodiscard]] Range message_from(const Operation& operation, std::uint32_t peer, Stream stream,
                                   std::uint64_t round) const;
  template <typename Visit>
  bool each_peer(Visit visit);

  Carrier& carrier_;
  std::vector<std::array<Cursor, kStreams>> cursors_;  // by node
  std::vector<const std::byte*> inputs_;
  std::deque<Operation> operations_;  // under way
  std::uint64_t finished_ = 0;        // operations
  std::uint64_t started_rounds_ = 0;  // of all operations, as is what follows
  std::uint64_t reduced_ = 0;
};

}  // namespace deft::link::mpi_backend
