// The messages of other daemons: checks form and version of each one and hands it to its job. A wrong message is dropped and counted.
//
//   ControlInbox inbox(control, jobs, clock);
//   inbox.receive(peer, bytes);
//
// Nobody but a node of a job can end that job by a message: a job's own nodes and leader are known by their connection.
// Reactor thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/base/rate_limit.h"
#include "daemon/server/job_table.h"
#include "daemon/wire/control_plane.h"
#include "daemon/wire/version_gate.h"

namespace deft::daemon {

class ControlInbox {
 public:
  // All references outlive this object.
  ControlInbox(ControlPort& control, JobTable& jobs, const Clock& clock)
      : control_(control), jobs_(jobs), clock_(clock), versions_(jobs.host()) {}

  // True: a job has taken it, so its sender takes part in this job.
  bool receive(const Peer& from, std::span<const std::byte> message);

  struct Drops {
    std::uint64_t unreadable = 0;
    std::uint64_t other_version = 0;
    std::uint64_t stranger = 0;   // the sender takes no part in the job, or its workers are not the job's
    std::uint64_t unclaimed = 0;  // the job does not run here (any more)
  };
  [[nodiscard]] const Drops& drops() const { return drops_; }
  [[nodiscard]] std::uint64_t rejected() const { return drops_.unreadable + drops_.other_version + drops_.stranger; }
  [[nodiscard]] std::uint64_t unclaimed() const { return drops_.unclaimed; }

 private:
  bool reject_mismatch(const Peer& from, std::span<const std::byte> message);
  bool reject(std::uint64_t& count, const std::string& why);  // false

  ControlPort& control_;
  JobTable& jobs_;
  const Clock& clock_;
  RateLimit lines_;
  VersionGate versions_;
  Drops drops_;
};

}  // namespace deft::daemon
