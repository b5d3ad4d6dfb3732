// A job's workers on this node, how far the job has come, and which ranks have left it.
//
//   Membership members(identity, settings);
//   if (auto ok = members.admit(worker, wishes); !ok) refuse(worker);            // this worker only
//   else if (auto ok = members.attach(worker); !ok) fail_job(ok.error());        // the workers contradict each other
//   if (members.complete()) members.advance(JobState::kJoining);
//
//   state        from it           what happens
//   kAttaching   kJoining          workers come; the job waits for the last one of this node
//   kJoining     kConnecting       all are here; the leader waits for the other nodes
//   kConnecting  kRunning          the nodes know each other (there is a View); links open
//   kRunning     -                 gradients and collectives
//   kEnded       -                 from every state; final
//
// No I/O. Reactor thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "daemon/base/log_lines.h"
#include "daemon/base/settings.h"
#include "daemon/node/worker_port.h"

namespace deft::daemon {

enum class JobState : std::uint8_t { kAttaching, kJoining, kConnecting, kRunning, kEnded };

std::string_view to_string(JobState state);

struct JobIdentity {  // a job's name and owner; all its workers say the same
  std::string name;
  uid_t uid = 0;
  std::uint32_t world = 1, local_size = 1;
  std::string leader;  // host:port; empty: unset
  std::string token;   // see wire::JobOwner
};

// For lines of the log that count as the user's.
inline LogSubject about(const JobIdentity& job) { return about(job.name).of(job.uid); }

class Membership {
 public:
  struct Worker {
    WorkerPort* port = nullptr;  // null: not here yet, or gone
    std::uint32_t rank = 0;
    pid_t pid = 0;
    bool left = false;  // ended cleanly
    [[nodiscard]] std::string describe() const;
  };

  Membership(JobIdentity identity, JobSettings settings);

  // Checks if a worker may join. An error refuses this worker, and the job goes on. `wishes`: the settings it asked for.
  [[nodiscard]] Result<void> admit(const WorkerPort& worker, const JobSettings& wishes) const;
  // Takes an admitted worker. kMismatch if it contradicts the workers that are here: the job cannot run.
  Result<void> attach(WorkerPort& worker);
  // The worker's session is over. Gives the worker's local index. Empty: it was no worker of this job.
  std::optional<std::size_t> detach(const WorkerPort& worker);

  [[nodiscard]] JobState state() const { return state_; }
  // False if the table above does not allow it; the state then stays.
  bool advance(JobState to);

  void mark_left(std::span<const std::uint32_t> ranks);  // of the whole job: they ended cleanly
  [[nodiscard]] bool has_left(std::uint32_t rank) const { return left_.count(rank) != 0; }
  [[nodiscard]] const std::set<std::uint32_t>& left() const { return left_; }
  [[nodiscard]] bool all_left() const;  // all local workers

  [[nodiscard]] const JobIdentity& identity() const { return identity_; }
  [[nodiscard]] const JobSettings& settings() const { return settings_; }
  [[nodiscard]] const std::vector<Worker>& workers() const { return workers_; }  // by local rank
  [[nodiscard]] std::optional<std::size_t> index_of(const WorkerPort& worker) const;
  [[nodiscard]] bool complete() const;  // all local workers are here
  [[nodiscard]] std::vector<std::uint32_t> ranks() const;
  [[nodiscard]] bool has_rank(std::uint32_t rank) const;
  [[nodiscard]] std::string missing() const;  // local ranks that are not here: "1, 3"

  // Puts the record into the completion ring of each worker that is here.
  void complete_all(const shm::Record& record) const;

 private:
  JobIdentity identity_;
  JobSettings settings_;
  JobState state_ = JobState::kAttaching;
  std::vector<Worker> workers_;
  std::set<std::uint32_t> left_;
};

}  // namespace deft::daemon
