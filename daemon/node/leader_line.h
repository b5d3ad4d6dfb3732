// A job's line to its leader, and from the leader to the nodes: over the control plane, or within this daemon if it leads.
//
//   line.lead({job, incarnation, world}, settings);   // this node has rank 0; or
//   line.connect("10.0.0.1:29610", user);
//   line.send(wire::LinksOpen{});
//
// Between different daemons, messages are encoded here and decoded by Job::receive, which checks them. Within one daemon they are
// handed over as they are, always through the reactor: neither side runs inside the other's code. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/base/reactor.h"
#include "daemon/leader/leader.h"
#include "daemon/node/leader_port.h"
#include "daemon/wire/codec.h"
#include "daemon/wire/control_plane.h"

namespace deft::daemon {

class LeaderLine final : public LeaderPort, private LeaderHost {
 public:
  using Deliver = std::function<void(wire::ToNode)>;  // takes the messages of a leader of this node

  // Both references outlive this object.
  LeaderLine(Reactor& reactor, ControlPort& plane, std::string job, Deliver deliver);
  ~LeaderLine() override;
  LeaderLine(const LeaderLine&) = delete;
  LeaderLine& operator=(const LeaderLine&) = delete;

  // Makes the leader and calls its tick() in time.
  void lead(Leader::Identity identity, const JobSettings& settings);
  // Returns at once; the connection is made, and made again, in the background. An error: not an address.
  Result<void> connect(const std::string& address, uid_t user);
  [[nodiscard]] bool is_locked_out() const { return !peer_.empty() && plane_.is_locked_out(peer_); }  // by another key
  [[nodiscard]] bool is_nowhere() const { return !peer_.empty() && plane_.is_nowhere(peer_); }        // has no address
  [[nodiscard]] bool is_open() const { return leader_ || !peer_.empty(); }

  void send(wire::ToLeader message) override;

  // False: a message of another daemon with this header is not for this job, whatever it says.
  [[nodiscard]] bool may_accept(const Peer& from, const wire::Header& header) const;
  // True if a message of another daemon is for this job: from its leader, or from a node to the leader here.
  [[nodiscard]] bool accepts(const Peer& from, const wire::Received& received) const;
  [[nodiscard]] bool is_leader(const Peer& from) const { return !peer_.empty() && from == peer_; }
  [[nodiscard]] Leader* leader() const { return leader_.get(); }  // null: it is on another node
  [[nodiscard]] std::uint64_t incarnation() const { return leader_ ? leader_->incarnation() : incarnation_; }
  void set_incarnation(std::uint64_t incarnation) { incarnation_ = incarnation; }  // as a leader elsewhere told it

 private:
  void send(std::span<const Peer> nodes, const wire::ToNode& message) override;  // from the leader; encoded once
  void send_joined(std::span<const Peer> nodes, wire::Joined message) override;
  Offload offload_for(const wire::JobOwner& owner) override;
  void tick();

  Reactor& reactor_;
  ControlPort& plane_;
  const std::string job_;
  Deliver deliver_;
  std::unique_ptr<Leader> leader_;
  Peer peer_;  // empty: this node leads, or does not know its leader yet
  std::uint64_t incarnation_ = 0;
  Reactor::TimerId timer_ = 0;                                  // of the leader
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // gone: posted calls do nothing any more
};

}  // namespace deft::daemon
