// The launches of one node's trace, put together from its records: the order, the time when its gradients were ready, and the stages
// of its transfer.
//
//   for (const NodeLaunch& launch : launches_of(node.trace)) ...
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/trace/trace_file.h"

namespace deft::replay {

struct NodeLaunch {
  struct Span {
    std::uint16_t stage = 0;  // trace::TransferStage
    TimeUs begin_us = 0;
    TimeUs end_us = 0;
  };

  std::uint64_t number = 0;
  std::uint16_t link = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wire_bytes = 0;
  std::optional<trace::OrderTrace> order = {};  // empty: a collective, or it was ordered before the trace began
  TimeUs ordered_us = 0;                        // if there is an order
  std::optional<TimeUs> ready_us = {};  // the local workers' last gradient of its bucket; empty: before the trace began
  std::optional<std::uint64_t> last_step = {};  // that its generation merges; empty as ready_us is
  std::vector<Span> spans = {};                 // in order of time; empty: it had not ended when the trace did

  // The time of one stage; 0 if it had none.
  [[nodiscard]] double stage_us(trace::TransferStage stage) const {
    double us = 0;
    for (const Span& span : spans)
      if (span.stage == static_cast<std::uint16_t>(stage)) us += static_cast<double>(span.end_us - span.begin_us);
    return us;
  }
  // If there are spans.
  [[nodiscard]] TimeUs begin_us() const { return spans.front().begin_us; }
  [[nodiscard]] TimeUs end_us() const { return spans.back().end_us; }
};

// The buckets that each tensor of the group overlaps, by tensor.
std::vector<std::vector<std::uint32_t>> buckets_by_tensor(const trace::TraceGroup& group);

// By the begin of their transfers; launches without spans come first.
std::vector<NodeLaunch> launches_of(const trace::NodeTrace& trace);

}  // namespace deft::replay
