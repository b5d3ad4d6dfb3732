// All-reduces and reduce-scatters of an MPI link, over its transport. They are cut into segments (core/link/segmented.h).
//
// The segments of kWindow rounds leave before the first of them is added. Both sides know the lengths, so a message is expected
// before it is sent, if the receiver has started the request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/link/mpi/transport.h"
#include "core/link/segmented.h"

namespace deft::link::mpi_backend {

class Engine {
 public:
  static constexpr std::size_t kDepth = 3;  // requests in flight

  explicit Engine(Transport& transport) : transport_(transport), cursors_(transport.nodes()) {}

  // finish() is for the oldest request in flight; there may be kDepth of them. Both return false when the transport has
  // failed. Only start() and finish() touch the data.
  bool start(const WorkRequest& request);
  bool finish();

 private:
  // Segments that leave before the first of them is added. To send one, a node has added the segments of kWindow rounds before; so
  // its peers had sent that, and had told MPI where this one goes. So the start of a request waits for nobody.
  static constexpr std::uint64_t kWindow = kStreamSlots;

  struct InFlight {
    Segmented segmented;  // with a single round if all is sent whole
    std::uint32_t tag = 0;
    std::vector<std::uint64_t> given;  // by node: the transport's messages when the last segment had gone
  };
  // The next message of a stream that MPI is to be told of.
  struct Cursor {
    std::uint64_t request = 0;
    std::uint64_t round = 0;
  };

  bool finish_whole(InFlight& entry);
  bool finish_rounds(InFlight& entry);
  bool expect_ahead();
  bool expect_of(std::uint32_t peer, Stream stream);
  bool fill_window();
  bool send_segments(InFlight& entry, std::uint64_t round);
  bool send_results(const InFlight& entry, std::uint64_t round);
  bool receive_results(const InFlight& entry, std::uint64_t round);
  bool own(const InFlight& entry, Range mine, std::uint64_t round);
  bool send(const InFlight& entry, std::uint32_t peer, Stream stream, Range range, std::uint64_t round);
  bool flush_segments(const InFlight& entry);
  template <typename Visit>
  bool for_peers(Visit visit) const;

  Transport& transport_;
  std::vector<std::array<Cursor, kStreams>> cursors_;  // by node
  std::vector<const std::byte*> inputs_;
  std::deque<InFlight> in_flight_;
  std::uint64_t finished_ = 0;        // requests
  std::uint64_t started_rounds_ = 0;  // of all requests, as is what follows
  std::uint64_t added_ = 0;
};

}  // namespace deft::link::mpi_backend
