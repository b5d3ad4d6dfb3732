#include "daemon/node/leader_line.h"

#include <utility>

namespace deft::daemon {

LeaderLine::LeaderLine(Reactor& reactor, ControlPort& plane, std::string job, Deliver deliver)
    : reactor_(reactor), plane_(plane), job_(std::move(job)), deliver_(std::move(deliver)) {}

LeaderLine::~LeaderLine() {
  reactor_.cancel(timer_);
  if (!peer_.empty()) plane_.disconnect(peer_);
}

Result<void> LeaderLine::connect(const std::string& address, uid_t user) {
  auto peer = plane_.connect(address, user);
  if (!peer) return tl::unexpected(peer.error());
  peer_ = std::move(*peer);
  return {};
}

void LeaderLine::send(wire::ToLeader message) {
  if (!is_open()) return;
  if (!leader_) return plane_.send(peer_, wire::encode({.job = job_, .incarnation = incarnation_}, message));
  reactor_.post([this, alive = std::weak_ptr(alive_), message = std::move(message)]() mutable {
    if (!alive.expired()) leader_->receive(Peer(), std::move(message));
  });
}

void LeaderLine::send(std::span<const Peer> nodes, const wire::ToNode& message) {
  std::string bytes;
  for (const Peer& node : nodes) {
    if (!node.empty()) {
      if (bytes.empty()) bytes = wire::encode({.job = job_, .incarnation = incarnation()}, message);
      plane_.send(node, bytes);
      continue;
    }
    reactor_.post([this, alive = std::weak_ptr(alive_), message = wire::ToNode(message)]() mutable {
      if (!alive.expired()) deliver_(std::move(message));
    });
  }
}

void LeaderLine::send_joined(std::span<const Peer> nodes, wire::Joined message) {
  const std::string common = wire::encode({.job = job_, .incarnation = incarnation()}, message);
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    message.node = node;
    if (nodes[node].empty())
      send(nodes.subspan(node, 1), message);
    else
      plane_.send(nodes[node], common + wire::joined_as_node(node));
  }
}

Offload LeaderLine::offload_for(const wire::JobOwner& owner) {
  return [&reactor = reactor_, user = owner.user](std::function<void()> work, std::function<void()> done) {
    reactor.offload(user, std::move(work), std::move(done));
  };
}

void LeaderLine::lead(Leader::Identity identity, const JobSettings& settings) {
  leader_ = std::make_unique<Leader>(reactor_.clock(), static_cast<LeaderHost&>(*this), std::move(identity), settings);
  tick();
}

void LeaderLine::tick() {
  name_callback("a leader's heartbeat");
  timer_ = 0;
  if (const auto delay_us = leader_->tick()) timer_ = reactor_.after(*delay_us, [this] { tick(); });
}

bool LeaderLine::may_accept(const Peer& from, const wire::Header& header) const {
  if (header.job != job_) return false;
  if (!peer_.empty()) return from == peer_;
  return leader_ && (leader_->gathering() || header.incarnation == leader_->incarnation());
}

bool LeaderLine::accepts(const Peer& from, const wire::Received& received) const {
  if (!may_accept(from, received.header())) return false;
  if (!leader_) return true;
  return received.is_join() ? leader_->gathering() : received.header().incarnation == leader_->incarnation();
}

}  // namespace deft::daemon
