// One job on one node: how it begins, runs and ends. Its parts do the work in between:
//
//   Membership        the local workers, the job's state, who has left
//   JoinPhase         JOIN, and the deadline until the job runs
//   LeaderLine        typed messages to the leader; on the node of rank 0 it holds the Leader
//   JobParts          made when the leader has told who takes part (the View):
//     GradientGroups    declarations, buckets, ready, launches, FINISH
//     CollectiveTable   requests, starts, completions
//     LinkSet           links, their queues and drivers; LinkRecovery replaces lost ones
//     Measurements      step times and gradient statistics
//     StallWatchdog     who owes what
//   WorkerEvents      requests of workers   -> the parts
//   LeaderMessages    messages of the leader  -> the parts
//
// Each of them is built and tested without a network. The job itself keeps the timers, watches its leader, and ends once. Between a
// node and its leader there are messages only, also within one daemon, but for the events of SchedulerPort.
//
// Whoever calls a job does so for it (run_for, daemon/base/callback_owner.h), so that an exception of the job's code fails this job.
// Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/sched/settings_change.h"
#include "daemon/base/failure_detector.h"
#include "daemon/node/job_control.h"
#include "daemon/node/job_parts.h"
#include "daemon/node/join_phase.h"
#include "daemon/node/leader_line.h"
#include "daemon/node/leader_messages.h"
#include "daemon/node/membership.h"
#include "daemon/node/worker_events.h"

namespace deft::daemon {

class Job;

struct JobContext {  // the daemon's parts that jobs share
  Reactor& reactor;
  ControlPort& control;
  const Config& config;
  std::string host;
  LinkMaker links = {};
  std::function<std::uint64_t()> make_incarnation = {};
  // The job can be put away once its drivers have finished. `cause`: what ended it; null: all its workers left.
  std::function<void(Job&, const Error* cause)> on_ended = {};
  std::string state_folder = {};  // for the traces of jobs that fail or stall; empty: none are written
};

class Job final : public JobControl, public std::enable_shared_from_this<Job> {
 public:
  // `first` is the worker whose HELLO made the job; the job belongs to its user. `context` outlives the job.
  Job(JobContext& context, const WorkerPort& first, JobSettings settings);
  ~Job() override;

  // A worker of this job. An error refuses this worker; if the workers of a new job contradict each other, the job fails, too.
  Result<void> attach(WorkerPort& worker);
  // The interface for the sessions of the workers of this job. It lives as long as the job.
  [[nodiscard]] std::shared_ptr<JobPort> port() { return {shared_from_this(), &worker_events_}; }

  // How far a message of another daemon is for this job. kByName: a JOIN of workers who belong to another job of this name.
  enum class Claim : std::uint8_t { kNone, kByName, kFull };
  // Without `received` only the header has been read: kFull says that the message may be for this job then.
  [[nodiscard]] Claim claim(const Peer& from, const wire::Header& header,
                            const wire::Received* received = nullptr) const;
  // A wrong message ends the job if it came from one of its nodes. False: the message was dropped.
  bool receive(const Peer& from, const wire::Received& received);
  // The daemon there speaks another version of the protocol, as `error` says: it cannot take part. The job ends if the leader or a daemon
  // with the key says so.
  void peer_mismatched(const Peer& from, const wire::Header& header, const Error& error);

  // No message reaches that daemon any more, and some are lost.
  void peer_stuck(const Peer& peer);

  // Another policy for the running job. kInvalid if this node does not lead the job, or if the job cannot change to it.
  Result<void> change_settings(const sched::SettingsChange& change);

  // What `deft trace` wants of all nodes; tells, now or later, the path of this node's file. kInvalid if this node does not lead the job.
  void trace(const wire::TraceOrder& order, const JobRecorder::Told& told);

  void fail(const Error& error) override;
  void suspect(const Error& error, FailureDetector::Broken broken) override;
  void end(const Error& error, bool clean) override;
  void joined(wire::Joined message) override;
  void begin() override;

  [[nodiscard]] const Membership& members() const { return members_; }
  // No thread of the job runs any more.
  [[nodiscard]] bool threads_finished() { return !parts_ || (parts_->links.finished() && parts_->recorder.finished()); }
  [[nodiscard]] nlohmann::json status() const;

 private:
  void join();
  void deliver(wire::ToNode message);
  void tick();
  void watch_leader(TimeUs now_us);

  JobContext& context_;
  const Config config_;  // of the daemon when the job began: it may change
  Membership members_;
  LeaderLine line_;
  JoinPhase joining_;
  std::unique_ptr<JobParts> parts_;  // once there is a view
  WorkerEvents worker_events_;
  LeaderMessages messages_;
  std::optional<FailureDetector> detector_;  // its only peer is the leader
  TimeUs all_left_us_ = 0;
  std::optional<Error> failing_;  // a leader of this node was told so
  Reactor::TimerId tick_timer_ = 0;
};

}  // namespace deft::daemon
