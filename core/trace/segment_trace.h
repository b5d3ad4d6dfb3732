// The record of data that a node sent or received.
#pragma once

#include <cstdint>

#include "core/trace/record.h"

namespace deft::trace {

// Data that this node sent to a peer over a link, or received from it, for a launch. Only files of traces have them: the ring that is
// always on would hold little else. On another node, the same numbers of launch, request, part and round mean the same data. A receive
// never ends before its send began; core/link/segment_observer.h says what else begin and end mean.
struct SegmentTrace {
  static constexpr TraceKind kKind = TraceKind::kSegment;
  std::uint64_t number = 0;  // of the launch
  std::uint64_t bytes = 0;
  std::uint32_t peer = 0;  // node, or a server's place in the link's list
  // Of the request; of a server's, the number of the segment. Of a link that workers run, the sending rank times the number of ranks,
  // plus the receiving rank.
  std::uint32_t round = 0;
  std::uint16_t link = 0;     // the launch's
  std::uint16_t request = 0;  // of the launch's
  std::uint8_t part = 0;      // model::SegmentPart
  std::uint8_t is_sent = 0;   // 1: sent; 0: received
  std::uint8_t is_server = 0;
  std::uint8_t unused = 0;
};

}  // namespace deft::trace
