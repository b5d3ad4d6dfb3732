// The record of what the leader took a link for: its scheduler and its plans decide by that.
//
//   TraceRecord record(now_us, now_us, LinkCostTrace{.latency_us = 210, .bytes_per_us = 3.9, .link = 1});
#pragma once

#include <cstdint>

#include "core/trace/record.h"

namespace deft::trace {

// The leader's node records it when it has changed and a stage begins, and again when a file begins. The cost holds until the next record
// of the link.
struct LinkCostTrace {
  static constexpr TraceKind kKind = TraceKind::kLinkCost;
  double latency_us = 0;
  double bytes_per_us = 0;  // as the scheduler counts bytes: on the wire if plans choose codecs, and else of gradients
  std::uint16_t link = 0;
};

}  // namespace deft::trace
