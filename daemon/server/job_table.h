// The jobs of this daemon: makes a job for the first of its workers, finds the job that a worker or a message is for, and puts jobs away.
//
//   JobTable jobs({reactor, control, config, host}, random_number(), [&] { stop_if_shutting_down(); });
//   if (auto ok = jobs.attach(worker); !ok) refuse(worker, ok.error());
//   jobs.receive(peer, header, message);    // of another daemon
//   jobs.fail_all(error);  jobs.empty();
//
// A job has three ages: it is found by its name while it takes part in anything; it has ended, and the threads of its links have
// not; it is gone. An exception of a job's code fails that job. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/sched/settings_change.h"
#include "daemon/node/job.h"
#include "daemon/server/ended_jobs.h"

namespace deft::daemon {

class JobTable {
 public:
  enum class Delivery : std::uint8_t {
    kTaken,
    kStranger,    // the job is here, and the sender takes no part in it
    kTurnedAway,  // likewise; the job's leader has told the sender why, and the log
    kUnclaimed,   // there is no such job, or no such run of it (any more)
    kUnreadable,
    kRefusal,  // of a message of this daemon
  };

  // Fills in the functions of `context`, whose references outlive this object. `first_incarnation`: a random number, so that the jobs of
  // two daemons that served one address differ. `on_empty`: called when the last job is gone.
  JobTable(JobContext context, std::uint64_t first_incarnation, std::function<void()> on_empty);
  ~JobTable();
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  // Brings a worker to its job, which it then serves; the first worker's HELLO makes the job. An error refuses this worker.
  Result<void> attach(WorkerPort& worker);

  // `header`: that of `message`, whose body is not read if no job awaits it.
  Delivery receive(const Peer& from, const wire::Header& header, std::span<const std::byte> message);
  // The daemon there speaks another version of the protocol: the jobs that it is to take part in hear of it.
  void peer_mismatched(const Peer& from, const wire::Received& received, const Error& error);
  // The daemon there takes no more messages: the jobs in which it takes part fail.
  void peer_stuck(const Peer& peer);
  // A user may change the settings of an own job, and root those of all. kInvalid: there is no such job, or it belongs to another user.
  Result<void> change_settings(uid_t user, const std::string& job, const sched::SettingsChange& change);
  // Likewise for what `deft trace` wants. An empty name: the user's only job. Tells, now or later, the path of this node's
  // file.
  void trace(uid_t user, const std::string& job, const wire::TraceOrder& order, const JobRecorder::Told& told);
  void fail_all(const Error& error);

  // A worker may still join a job of this name, or of the name that this one is a process set of.
  [[nodiscard]] bool has(const std::string& name, uid_t user) const;
  [[nodiscard]] bool running() const { return !jobs_.empty(); }  // a job has not ended
  [[nodiscard]] bool empty() const { return jobs_.empty() && ended_.empty(); }
  [[nodiscard]] std::size_t closing() const { return ended_.size(); }  // have ended, and threads of theirs have not
  [[nodiscard]] const EndedJobs& history() const { return history_; }  // of the jobs that have ended
  [[nodiscard]] const std::string& host() const { return context_.host; }
  // One object for each job that has not ended: of this user, or of all users.
  [[nodiscard]] nlohmann::json status(std::optional<uid_t> user = std::nullopt) const;

 private:
  using Jobs = std::list<std::shared_ptr<Job>>;
  [[nodiscard]] std::shared_ptr<Job> find(const std::string& name, uid_t user) const;
  [[nodiscard]] Result<std::shared_ptr<Job>> find_for(uid_t user, const std::string& name) const;
  [[nodiscard]] Result<void> check_room(uid_t user) const;
  Result<std::shared_ptr<Job>> job_for(const WorkerPort& worker);
  void on_ended(const Job& job, const Error* cause);
  void put_away();

  JobContext context_;
  const std::function<void()> on_empty_;
  std::uint64_t next_incarnation_;
  Jobs jobs_;
  Jobs ended_;  // until their link threads have ended
  EndedJobs history_;
  Reactor::TimerId timer_ = 0;  // of put_away()
};

}  // namespace deft::daemon
