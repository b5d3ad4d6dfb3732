// Tells where the time of a step goes, on the critical path over all nodes.
//
//   const TimeShares shares = time_shares(job);
//   shares.communication_us / shares.step_us()
//
// The path is walked back from each wait of the leader's first worker. The wait ends with the newest result. From there the path
// goes back through that transfer: its copy and decoding, the link, the node that brought its gradients last, the order of the
// leader, and the transfer before it on the same link. It ends when it has explained as much time as the worker waited, because
// before that the worker computed, and communication was hidden. Where the path meets a worker that still computes, the rest is
// waiting for that worker, but for as long as it began later because a transfer had ended later on its node: that is communication. All
// figures are means a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

struct TimeShares {
  double compute_us = 0;  // of the fastest node
  double slow_worker_us = 0;
  double communication_us = 0;  // that compute does not hide
  double queueing_us = 0;       // gradients are ready on all nodes, and the policy has not sent them
  double codec_us = 0;
  double daemon_us = 0;   // local sums and copies, decisions, wake-ups
  std::size_t steps = 0;  // of which these are the means

  [[nodiscard]] double step_us() const {
    return compute_us + slow_worker_us + communication_us + queueing_us + codec_us + daemon_us;
  }
};

// A piece of the path. A step is a piece of compute as a whole, and the pieces of its waits cover parts of it.
struct PathPiece {
  TimeUs begin_us = 0, end_us = 0;
  double TimeShares::*share = nullptr;
  std::uint64_t launch = 0;  // of a wait
};

// All shares are 0 if the leader's trace has no whole steps. `path` takes the pieces, unless it is null. The pieces of a wait go backwards.
TimeShares time_shares(const JobTrace& job, std::vector<PathPiece>* path = nullptr);

}  // namespace deft::replay
