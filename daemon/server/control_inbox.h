// What comes from other daemons: checks form and version of each message and hands it to its job. What is wrong is dropped and counted.
//
//   ControlInbox inbox(control, jobs);
//   inbox.receive(peer, bytes);
//
// Nobody but a node of a job can end that job by a message: a job's own nodes and leader are known by their connection.
// Reactor thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/server/job_table.h"
#include "daemon/wire/control_plane.h"
#include "daemon/wire/version_gate.h"

namespace deft::daemon {

class ControlInbox {
 public:
  // Both references outlive this object.
  ControlInbox(ControlPort& control, JobTable& jobs) : control_(control), jobs_(jobs), versions_(jobs.host()) {}

  void receive(const Peer& from, std::span<const std::byte> message);

  // Messages that are wrong, of another version, or of a sender that takes no part in the job.
  [[nodiscard]] std::uint64_t rejected() const { return rejected_; }
  // Messages of jobs that do not run here (any more).
  [[nodiscard]] std::uint64_t unclaimed() const { return unclaimed_; }

 private:
  void reject(const std::string& why);

  ControlPort& control_;
  JobTable& jobs_;
  VersionGate versions_;
  std::uint64_t rejected_ = 0, unclaimed_ = 0;
};

}  // namespace deft::daemon
