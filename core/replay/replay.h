// Predicts how long a step takes: of a traced job, and of what it would be under other conditions.
//
//   auto now = replay(measured, {});                                   // as it was traced
//   auto then = replay(measured, {.policy = "knapsack", .straggler = false});
//   now->step_us_p50, now->measured_step_us_p50
//
// The scheduler's own code runs in the simulator (core/sim), on the times of the trace. So replay decides as training does. If it sends
// fewer parts than in the trace, the daemons leave the workers more of their cores (core_waits.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/replay/measured_job.h"
#include "core/replay/memory_peak.h"

namespace deft::replay {

// The differences to the traced job.
struct WhatIf {
  std::string policy = {};  // empty: the traced one. A traced `auto` has what it had in force, if that is known
  // By link: so many times the traced throughput; 0: the job runs without that link.
  std::map<std::string, double> link_speed = {};
  std::optional<std::uint32_t> nodes =
      {};                    // so many nodes; those beyond the traced ones are like the traced ones in turn
  bool straggler = true;     // false: every node computes as fast as the fastest
  double compute_speed = 1;  // so many times as fast
  MemoryWhatIf memory = {};  // another batch, accumulation, recomputation
  std::optional<model::CodecCost> codec =
      {};                // of all gradients that may be encoded; an exact one: none. Empty: as traced
  bool briefly = false;  // fewer steps, for a search among exact policies: plans come into force too late
  std::function<bool()> is_stopped =
      {};  // asked now and then: a replay whose answer is true fails. Empty: nobody stops it
};

struct Prediction {
  std::string policy;
  double step_us_p10 = 0, step_us_p50 = 0, step_us_p90 = 0, step_us_mean = 0;
  double compute_us = 0;
  double coarse_step_us =
      0;  // without a scheduler: each gradient takes its size over the bandwidth, one after the other
  double measured_step_us_p50 = 0, measured_step_us_mean = 0;  // of the trace, whatever was asked
  double updates_per_step = 0;
};

// True if it makes fewer updates a step than `updates`, by more than noise. Then shorter steps are no gain.
[[nodiscard]] bool makes_fewer_updates(const Prediction& prediction, double updates);

// kInvalid for an unknown link or policy, or an impossible number; the error names it. kUnavailable if it is stopped.
Result<Prediction> replay(const MeasuredJob& measured, const WhatIf& what_if);

}  // namespace deft::replay
