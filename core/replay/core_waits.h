// How long workers waited for a core because the job's daemons had it, and how long they would wait with fewer parts.
//
//   measured.core_waits = core_waits_of(job, profile.links);
//   const auto nodes = with_fewer_waits(measured.nodes, measured.core_waits, parts_per_step);
//
// The kernel counts how long a worker's main thread was ready to run and had no core. Compute without that time stays the same,
// whatever the daemons do. Many small parts cost the daemons much processor time. If a machine has no core to spare, they take it
// from the workers, whose layers seem to be slower. The daemons' share of the waiting is their share of all that ran on these
// cores. It shrinks as their work does. More parts than in the trace change nothing here: nobody has measured what they would cost.
#pragma once

#include <vector>

#include "core/model/profile.h"
#include "core/replay/job_trace.h"
#include "core/sim/simulation.h"

namespace deft::replay {

struct CoreWaits {
  std::vector<double> share = {};  // of a step's compute: what the daemons made it longer. By place in the job's nodes
  double parts_per_step = 0;
  double cost_of_parts = 0;  // the share of the daemons' work that is for parts, and not for their bytes
};

// All is 0 if the trace does not tell: of older versions, or without links whose latency is known. `links`: as they were measured.
CoreWaits core_waits_of(const JobTrace& job, const std::vector<model::ProfileLink>& links);

// The nodes with so many parts a step: as many as were traced, or fewer.
std::vector<sim::NodeSpeed> with_fewer_waits(std::vector<sim::NodeSpeed> nodes, const CoreWaits& waits,
                                             double parts_per_step);

}  // namespace deft::replay
