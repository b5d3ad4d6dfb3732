#include "daemon/node/leader_line.h"

#include <utility>

namespace deft::daemon {

LeaderLine::LeaderLine(Reactor& reactor, ControlPlane& plane, JobControl& control, std::string job, Deliver deliver)
    : reactor_(reactor), plane_(plane), control_(control), job_(std::move(job)), deliver_(std::move(deliver)) {}

LeaderLine::~LeaderLine() {
  if (!peer_.empty()) plane_.disconnect(peer_);
}

Result<void> LeaderLine::connect(const std::string& address) {
  auto peer = plane_.connect(address);
  if (!peer) return tl::unexpected(peer.error());
  peer_ = std::move(*peer);
  return {};
}

void LeaderLine::send(wire::ToLeader message) {
  if (!is_open()) return;
  if (!leader_) return plane_.send(peer_, wire::encode({.job = job_, .incarnation = incarnation_}, message));
  reactor_.post([this, alive = std::weak_ptr(alive_), message = std::move(message)]() mutable {
    if (alive.expired()) return;
    guard(control_, "a message to the leader", [&] { leader_->receive(Peer(), std::move(message)); });
  });
}

void LeaderLine::send_to_node(const Peer& node, wire::ToNode message) {
  if (!node.empty()) return plane_.send(node, wire::encode({.job = job_, .incarnation = incarnation()}, message));
  reactor_.post([this, alive = std::weak_ptr(alive_), message = std::move(message)]() mutable {
    if (!alive.expired()) deliver_(std::move(message));
  });
}

bool LeaderLine::accepts(const Peer& from, const wire::Received& received) const {
  if (received.header().job != job_) return false;
  if (!peer_.empty()) return from == peer_;
  if (!leader_) return false;
  return received.is_join() ? leader_->gathering() : received.header().incarnation == leader_->incarnation();
}

}  // namespace deft::daemon
