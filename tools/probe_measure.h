// What `deft probe` measures on one link between some nodes: all-reduces of growing size.
#pragma once

#include <vector>

#include "core/link/link.h"
#include "core/model/link_fit.h"

namespace deft::tools {

struct ProbeLimits {
  double seconds = 0.5;     // for all sizes together, about
  TimeUs deadline_us = 0;   // MonotonicClock: an operation that has not ended by then is aborted
  std::size_t largest = 0;  // bytes
};

// For each size the median of some all-reduces. All nodes of the link call it at once; node 0 of
// the link decides how many transfers there are.
Result<std::vector<model::LinkSample>> measure_link(link::Link& link, const ProbeLimits& limits);

}  // namespace deft::tools
