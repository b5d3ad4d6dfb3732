// How much of its compute a node's workers keep their cores. Workers that compute on a GPU leave them to the daemon.
//
//   const double share = compute_on_cores(job, node);   // 1: they compute on the cores all the time
#pragma once

#include <cstddef>

#include "core/replay/job_trace.h"

namespace deft::replay {

// The time in which a worker ran or waited for a core, over that of its compute, at most 1. `node` is a place in job.nodes. 1 if the trace
// does not tell.
double compute_on_cores(const JobTrace& job, std::size_t node);

}  // namespace deft::replay
