// How much of each node's cores other programs took: all programs but the job's workers and the daemons of its nodes. Traces of older
// versions tell nothing of it.
//
//   const auto shares = shares_of_cores(job, 0);
//   if (const auto taken = taken_beyond(shares, 3)) say("other programs take " + percent(*taken) + " of node3's cores");
//
// Emulated nodes share the cores of one machine, so the workers and daemons of all of them are the job's. Children of workers, as those
// that load data, are other programs. All nodes have them alike, so only a node that has more than the others is told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

struct CoreShares {
  double others = 0;   // share of the node's cores that other programs took
  double waiting = 0;  // share of the time in which a worker's main thread had no core
  double daemons = 0;  // share of what ran on these cores that was the work of the job's daemons

  // True if the workers had too few cores. Other programs on idle ones disturb nobody, nor do those of low priority.
  [[nodiscard]] bool is_short() const;
};

// By place in job.nodes, from this time of the leader's clock on. Empty: the trace of the node does not tell.
std::vector<std::optional<CoreShares>> shares_of_cores(const JobTrace& job, TimeUs from_us);

// What other programs take of the cores of the node at this place, if they take more than on the other nodes, and its workers lack it.
std::optional<double> taken_beyond(const std::vector<std::optional<CoreShares>>& shares, std::size_t node);

// A sentence about the node of which other programs take most, and how many are like it. Empty if workers lack nothing, or if the traces of
// some nodes are missing: nobody knows whether these run on the same machines.
std::string note_of_other_programs(const JobTrace& job);

}  // namespace deft::replay
