// The measurement of `deft probe` on one link between some nodes: all-reduces of growing size.
#pragma once

#include <vector>

#include "core/link/link.h"
#include "core/model/link_costs.h"

namespace deft::tools {

struct ProbeLimits {
  double seconds = 0.5;     // about so long for all sizes together
  TimeUs deadline_us = 0;   // MonotonicClock; an operation that has not ended by then is aborted
  std::size_t largest = 0;  // the largest size in bytes
};

// The median time of some all-reduces for each size. All nodes of the link call this at once. Node 0 of the link decides how
// many transfers there are. Blocks; the error is that of the link.
Result<std::vector<model::LinkSample>> measure_link(link::Link& link, const ProbeLimits& limits);

// All-reduces of this size, one after the other, for this long in node 0's view: the mean time of one. For links that are measured at
// the same time: the transfers of a series of sizes would not meet.
Result<model::LinkSample> measure_for(link::Link& link, std::size_t bytes, const ProbeLimits& limits);

// The throughput of a link between two nodes: bytes a us from node 0 to node 1, and back, each while the other way is idle.
Result<std::vector<double>> measure_one_way(link::Link& link, std::size_t bytes, const ProbeLimits& limits);

}  // namespace deft::tools
