// What the user allows a plan to do, and the slack that the planner keeps.
//
//   Limits limits = training_limits();   // or {}: the limits of `deft simulate`
//   limits.set_slots(slots);
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace deft::plan {

struct Limits {
  std::uint32_t max_staleness_steps = 16;  // model::PlanGeneration::staleness; 0: synchronous, one update a step
  std::uint32_t max_merged_steps = 16;     // steps in one generation
  std::uint32_t max_generations = 8;       // under way at once: slots of the arena
  double jitter_margin = 0.02;             // share of the links' time that stays free
  double bubble_tolerance = 0.005;         // waiting that is as good as none, as a share of compute
  double rate_tolerance = 0.02;            // updates that may be given up for less staleness and fewer parts
  double fresh_tolerance = 0;     // waiting, as a share of compute, that is accepted for fresh updates in every step
  double stale_share = 1;         // of all bytes, the share that may be merged or stale
  std::vector<bool> joined = {};  // [bucket]: a tensor joins it and the one before, so both have the same dates
  double capacity = 1.0;          // compute time that communication may count on; above 1 it buys updates with waiting

  // An arena of one slot has nowhere to put a second generation: its updates cannot be delayed.
  void set_slots(std::uint32_t slots) {
    max_generations = std::max<std::uint32_t>(2, slots);
    if (slots < 2) max_staleness_steps = 0;
  }
};

// The limits of a training with the default options.
inline Limits training_limits() {
  Limits limits;
  limits.max_staleness_steps = 4;
  limits.max_generations = 4;
  limits.jitter_margin = 0.08;    // times vary, and links carry less while the cores compute
  limits.fresh_tolerance = 0.01;  // less than step times vary by: a network that nearly keeps up costs no staleness
  limits.stale_share = 0.9;
  return limits;
}

}  // namespace deft::plan
