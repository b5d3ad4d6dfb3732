// The jobs of this daemon: makes a job for the first of its workers, finds the job that a worker or a message is for, and puts jobs away.
//
//   JobTable jobs({reactor, control, config, host}, random_number(), [&] { stop_if_shutting_down(); });
//   if (auto ok = jobs.attach(worker); !ok) refuse(worker, ok.error());
//   jobs.receive(peer, message);            // of another daemon
//   jobs.fail_all(error);  jobs.empty();
//
// A job has three ages: it is found by its name while it takes part in anything; it has ended, and the threads of its links have
// not; it is gone. What a job's code throws fails that job. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/node/job.h"

namespace deft::daemon {

class JobTable {
 public:
  enum class Delivery : std::uint8_t {
    kTaken,
    kStranger,   // the job is here, and the sender takes no part in it
    kUnclaimed,  // there is no such job, or no such run of it (any more)
  };

  // Fills in the functions of `context`, whose references outlive this object. `first_incarnation`: a random number, so that the jobs of
  // two daemons that served one address differ. `on_empty`: called when the last job is gone.
  JobTable(JobContext context, std::uint64_t first_incarnation, std::function<void()> on_empty);
  ~JobTable();
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  // Brings a worker to its job, which it then serves; the first worker's HELLO makes the job. An error refuses this worker.
  Result<void> attach(WorkerPort& worker);

  Delivery receive(const Peer& from, const wire::Received& received);
  // The daemon there speaks another version of the protocol: the jobs that it is to take part in hear of it.
  void peer_mismatched(const Peer& from, const wire::Received& received, const Error& error);
  // A user may set the policy of an own job, and root that of all. kInvalid if there is no such job, or if it is another user's.
  Result<void> set_policy(uid_t user, const std::string& job, const std::string& policy);
  void fail_all(const Error& error);

  [[nodiscard]] bool running() const { return !jobs_.empty(); }  // a job has not ended
  [[nodiscard]] bool empty() const { return jobs_.empty() && ended_.empty(); }
  [[nodiscard]] std::uint64_t served() const { return served_; }  // jobs that have ended
  [[nodiscard]] const std::string& host() const { return context_.host; }
  [[nodiscard]] nlohmann::json status() const;  // one object for each job that has not ended

 private:
  using Jobs = std::list<std::shared_ptr<Job>>;
  [[nodiscard]] std::shared_ptr<Job> find(const std::string& name) const;
  Result<std::shared_ptr<Job>> job_for(const WorkerPort& worker);
  void on_ended(const Job& job);
  void put_away();

  JobContext context_;
  const std::function<void()> on_empty_;
  std::uint64_t next_incarnation_;
  Jobs jobs_;
  Jobs ended_;  // until their link threads have ended
  std::uint64_t served_ = 0;
  Reactor::TimerId timer_ = 0;  // of put_away()
};

}  // namespace deft::daemon
