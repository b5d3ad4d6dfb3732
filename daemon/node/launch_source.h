// The questions of a link about a launch: may it start, which memory does it move, and who hears that it is done?
//
// Gradients and collectives are two sources of launches. LinkSet runs the launches of both in the leader's order, and asks
// the source of each. Reactor thread.
#pragma once

#include "core/base/status.h"
#include "daemon/channel/in_process_driver.h"
#include "daemon/channel/link_driver.h"

namespace deft::daemon {

class LaunchSource {
 public:
  virtual ~LaunchSource() = default;

  // All local workers have brought their data.
  [[nodiscard]] virtual bool can_start(const SubCommTask& launch) const = 0;
  // The transfer of a link that the daemon runs. Token and replay buffer are the caller's to set.
  [[nodiscard]] virtual Transfer transfer_of(const SubCommTask& launch) const = 0;
  // The records of a link that the workers run: the same number of records for each local worker.
  [[nodiscard]] virtual InProcessDriver::Records records_of(const SubCommTask& launch) const = 0;
  // It runs on over other buckets.
  [[nodiscard]] virtual bool is_merged(const SubCommTask& launch) const = 0;
  // The launch is done on this node: tells the workers. An error is our own mistake and ends the job.
  virtual Result<void> finish(const SubCommTask& launch, const TransferDone& done) = 0;
};

}  // namespace deft::daemon
