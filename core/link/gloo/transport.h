// Moves the segments and results of requests over a mesh, without a handshake for any message.
//
// Segments arrive in a scratch of kWindow slots for each peer, which is registered once. A slot is free again when its
// owner's result of that round has arrived, so results are the only acknowledgements. Results go straight into the caller's
// memory, which is registered before the first segment leaves, hence before any result can come.
//
// All functions that wait or send throw a PeerFailure if gloo fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/link/gloo/mesh.h"
#include "core/link/segmented.h"

namespace gloo::transport {
class Buffer;
}

namespace deft::link::gloo_backend {

class Transport {
 public:
  static constexpr std::uint64_t kWindow = 4;
  static constexpr std::uint64_t kMostInFlight = 8;  // requests

  // The buffers of one request for one peer.
  struct Peer {
    std::unique_ptr<gloo::transport::Buffer> segment_send;    // from the caller's memory into the peer's inbox
    std::unique_ptr<gloo::transport::Buffer> result_send;     // from the caller's memory into the same place there
    std::unique_ptr<gloo::transport::Buffer> result_receive;  // into the caller's memory
    int segments_unsent = 0;                                  // sends that were not waited for yet
    int results_unsent = 0;
  };
  using Peers = std::vector<Peer>;  // by node; this node's own is unused

  // `depth`: requests in flight, up to kMostInFlight.
  Transport(Mesh& mesh, std::uint64_t depth);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] Segmented cut(const WorkRequest& request) const;
  // Registers a request's memory. Nodes that disagree about the request register different numbers: then nothing is delivered
  // to the wrong place, and both sides wait until they are aborted.
  Peers connect(const Segmented& segmented);

  // Sends one round's segments, or all data if that is sent whole.
  void send_segments(const Segmented& segmented, Peers& peers, std::uint64_t round);
  void await_segments(const Segmented& segmented, std::uint64_t round);  // one of each peer
  // Where the peers' segments of a round have arrived, and this node's own elements `mine`, by node.
  std::span<const std::byte* const> inputs(const Segmented& segmented, Range mine, std::uint64_t round);
  void send_results(const Segmented& segmented, Peers& peers, std::uint64_t round);
  void await_results(const Segmented& segmented, const Peers& peers, std::uint64_t round);
  void await_sends(Peers& peers);

 private:
  // Where the segments of one peer arrive.
  struct Inbox {
    std::vector<std::byte> scratch;        // kWindow slots for rounds
    std::unique_ptr<std::byte[]> unsplit;  // slots for requests that are sent whole; memory is taken as it is used
    std::unique_ptr<gloo::transport::Buffer> rounds;
    std::unique_ptr<gloo::transport::Buffer> wholes;
    std::byte acknowledged{};  // where results arrive that bring nothing (kReduceByAll)
  };
  [[nodiscard]] std::size_t slot_of(const Segmented& segmented, std::uint64_t round) const;
  [[nodiscard]] std::size_t most_whole_bytes(const WorkRequest& request) const;
  template <typename Visit>
  void each_peer_named(Visit visit) const;

  Mesh& mesh_;
  const std::size_t slot_bytes_;
  const std::size_t whole_bytes_;  // a slot for data that is sent whole
  const std::uint64_t whole_slots_;
  std::vector<Inbox> inboxes_;            // by node; this node's own is unused
  std::vector<const std::byte*> inputs_;  // the reducing thread's
  std::uint64_t connected_ = 0;           // requests; the same on all nodes
};

}  // namespace deft::link::gloo_backend
