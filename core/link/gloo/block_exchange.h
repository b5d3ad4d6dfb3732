// An all-gather or a broadcast over a mesh. In an all-gather each node's block goes to all peers, and theirs come here. The block of a
// broadcast leaves its root once, if it is large: each of the others gets a part of it, and passes that on while the next one comes.
//
//   BlockExchange exchange(mesh, request, number);   // begins to send and to receive
//   exchange.wait();                                 // until all have come and all are sent
//
// Each message has a buffer of its own, so that a failure names a peer. Both throw a PeerFailure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/link/gloo/mesh.h"
#include "core/link/segment_observer.h"
#include "core/link/work_request.h"

namespace deft::link::gloo_backend {

class BlockExchange {
 public:
  // `number`: counts the exchanges of the mesh. Nodes that disagree about a request wait until they are aborted.
  BlockExchange(Mesh& mesh, const WorkRequest& request, std::uint64_t number);
  ~BlockExchange();

  void wait();

 private:
  struct Message {
    std::uint32_t peer;
    std::uint32_t round;
    std::span<std::byte> data;
    MoveTimer timer;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };
  void exchange_blocks(const WorkRequest& request);
  void spread_parts(const WorkRequest& request);
  Message begin(std::uint32_t peer, std::uint32_t round, std::span<std::byte> data, bool is_sent);
  void end(const Message& message, bool is_sent) const;

  Mesh& mesh_;
  const std::uint64_t request_;  // its id
  const std::shared_ptr<SegmentObserver> observer_;
  const std::uint64_t tag_;  // of the first round
  std::vector<Message> receives_;
  std::vector<Message> passed_on_;  // receives of the own parts of a broadcast, in their order
  std::vector<Message> sends_;
  std::vector<std::uint32_t> next_;  // the peers to which own parts go
};

}  // namespace deft::link::gloo_backend
