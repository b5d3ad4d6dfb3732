// The leader's side of a job: on the daemon of rank 0's node, and there only.
//
// It gathers the nodes (Roster), decides the order of all launches (LaunchCoordinator) and of all collectives (CollectiveCoordinator),
// keeps the rendezvous store, goes on without a lost link (LinkFailover), and finds the cause of a failure. It talks to the nodes, its
// own included, by the messages of daemon/wire/messages.h. The events of its own node come to scheduler().
//
//   Leader leader(clock, host, {.job = name, .incarnation = 7, .world = 4}, settings);
//   leader.receive(peer, message);                                   // checked by the codec against leader.facts(peer)
//   while (auto delay_us = leader.tick()) call_again_after(*delay_us);
//
// No I/O, no timer: its LeaderHost sends and plans for it, and its owner calls tick(). Not thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "core/base/clock.h"
#include "core/sched/settings_change.h"
#include "daemon/base/failure_detector.h"
#include "daemon/base/settings.h"
#include "daemon/leader/collective_coordinator.h"
#include "daemon/leader/launch_coordinator.h"
#include "daemon/leader/link_failover.h"
#include "daemon/leader/offloaded_plans.h"
#include "daemon/leader/roster.h"
#include "daemon/leader/store_table.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

// The services that a leader needs of its daemon.
class LeaderHost {
 public:
  virtual ~LeaderHost() = default;
  // Sends to each of these nodes, behind all messages that were sent before. Must not call the leader back.
  virtual void send(std::span<const Peer> nodes, const wire::ToNode& message) = 0;
  // Sends to each of these nodes, with its index among them.
  virtual void send_joined(std::span<const Peer> nodes, wire::Joined message) {
    for (message.node = 0; message.node < nodes.size(); ++message.node) send(nodes.subspan(message.node, 1), message);
  }
  // For plans of `owner`'s job. Empty: they are made at once.
  virtual Offload offload_for(const wire::JobOwner& owner) { return static_cast<void>(owner), Offload(); }
};

class Leader final {
 public:
  struct Identity {
    std::string job;
    std::uint64_t incarnation = 0;  // differs for each job of this daemon
    std::uint32_t world = 1;
    wire::JobOwner owner = {};
    std::optional<TimeUs> gathered_by_us = {};  // all have come; empty: a timeout from now
  };

  // `clock` and `host` outlive this object.
  Leader(const Clock& clock, LeaderHost& host, Identity identity, JobSettings settings);

  void receive(const Peer& from, wire::ToLeader message);
  // The facts against which a message from there is checked.
  [[nodiscard]] wire::LeaderFacts facts(const Peer& from) const;
  // A message from there is wrong, or none reaches it, as `error` says: the job ends if it is one of its nodes. False: it is not; while
  // nodes are missing, the error of the deadline names it.
  bool refuse(const Peer& from, const Error& error);

  // The user wants other settings. kInvalid: the job cannot have them. kUnavailable: it has no gradients yet.
  Result<void> change_settings(const sched::SettingsChange& change);

  // All other nodes do this.
  void order_trace(const wire::TraceOrder& order);

  // Takes the events of the own node. Null before all nodes have come; valid from then on as long as the leader.
  [[nodiscard]] SchedulerPort* scheduler() { return launches_ ? &*launches_ : nullptr; }

  // Looks at who is missing, silent, late or stalled. Gives the time until it must be called again; nothing: the job has failed.
  std::optional<TimeUs> tick();

  [[nodiscard]] std::uint64_t incarnation() const { return id_.incarnation; }
  [[nodiscard]] const wire::JobOwner& owner() const { return id_.owner; }
  [[nodiscard]] bool gathering() const { return state_ == State::kGathering; }
  [[nodiscard]] nlohmann::json status() const;

 private:
  enum class State : std::uint8_t { kGathering, kConnecting, kRunning, kFailed };
  class Handler;  // of the messages of a node

  void turn_away(const Peer& from, const wire::Join& join);
  void begin_connecting();
  void remove_link(const wire::LinkFailed& failed);
  void suspect(const Error& error, FailureDetector::Broken broken);
  void watch_nodes(TimeUs now_us);
  void watch_late_nodes(TimeUs now_us);
  void watch_links(TimeUs now_us);
  void to_all(const wire::ToNode& message) { host_.send(roster_.peers(), message); }
  void fail_job(const Error& error);

  const Clock& clock_;
  LeaderHost& host_;
  const Identity id_;
  const JobSettings settings_;
  TimeUs starts_by_us_;  // all have come, and then: all links are open
  State state_ = State::kGathering;
  Roster roster_;
  StoreTable store_;
  // Once all nodes have come:
  std::optional<LinkFailover> links_;
  std::optional<LaunchCoordinator> launches_;
  std::optional<CollectiveCoordinator> collectives_;
  std::optional<FailureDetector> detector_;
};

}  // namespace deft::daemon
