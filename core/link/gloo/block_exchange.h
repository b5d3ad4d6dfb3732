// An all-gather or a broadcast over a mesh: this node's block goes to all peers, and theirs come here.
//
//   BlockExchange exchange(mesh, request, number);   // begins to send and to receive
//   exchange.wait();                                 // until all have come and all are sent
//
// Each peer has buffers of its own, so that a failure names a peer. Both throw a PeerFailure.
#pragma once

#include <cstdint>
#include <memory>
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
  struct Transfer {
    std::uint32_t peer;
    std::size_t bytes;
    MoveTimer timer;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };
  void tell(const Transfer& transfer, bool is_sent) const;

  const std::uint64_t request_;  // its id
  const std::shared_ptr<SegmentObserver> observer_;
  std::vector<Transfer> receives_;
  std::vector<Transfer> sends_;
};

}  // namespace deft::link::gloo_backend
