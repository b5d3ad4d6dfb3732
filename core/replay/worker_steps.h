// The whole steps of one worker, put together from its stages and gradients.
//
//   const trace::TraceGroup* group = largest_group(node.trace);      // null: there are no gradients
//   for (const WorkerStep& step : steps_of(node.trace, *group, 0)) ... step.compute_us()
//
// The first steps of a trace are left out: they may allocate memory, and are no usual steps. If plans merge steps, a bucket is handed in
// only in the last step that its generation merges, so not every step is complete.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/trace/trace_file.h"

namespace deft::replay {

// Times are microseconds of the leader's clock. Some plugins, as DDP's, wait outside Deft, and tell of no wait. If a worker of a trace
// tells none, and its updates are not delayed, it counts as waiting from a step's last gradient to the end of the last transfer before
// the next forward. Older versions do not say whether a worker tells its waits: then it tells none if it has waited for nothing.
struct WorkerStep {
  std::uint64_t number = 0;
  double forward_us = 0;  // without waiting
  double rest_us = 0;     // after the last gradient, or from backward on if there is none, without waiting
  double whole_us = 0;    // from forward to forward, waiting included
  double waited_us = 0;   // in forward, and from backward on
  double waited_in_forward_us = 0;
  TimeUs backward_began_us = 0;
  TimeUs ended_us = 0;  // the next forward began
  // Gradients came behind that: the host tells when it enqueues stages, and its GPU was behind.
  bool is_of_host = false;
  std::vector<TimeUs> ready_us;  // [bucket]; 0: not handed in

  [[nodiscard]] double compute_us() const { return whole_us - waited_us; }
  [[nodiscard]] bool complete() const {
    return std::ranges::all_of(ready_us, [](TimeUs us) { return us > 0; });
  }
};

// The group that holds most of the bytes: the others are small models beside it. Null: the trace has no gradients.
const trace::TraceGroup* largest_group(const trace::NodeTrace& trace);

// The numbers on the node of its workers of which the trace has records, ascending. A header may name a million ranks: at most
// kMostWorkers of them count.
inline constexpr std::size_t kMostWorkers = 1024;
std::vector<std::uint32_t> recorded_workers(const trace::NodeTrace& trace);

// `worker`: its number on the node.
std::vector<WorkerStep> steps_of(const trace::NodeTrace& trace, const trace::TraceGroup& group, std::uint32_t worker);

}  // namespace deft::replay
