// What the user allows a plan to do, and the slack it keeps.
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
  double fresh_tolerance = 0;              // waiting, as a share of compute, worth an update a step without staleness
  double stale_share = 1;                  // of all bytes, how many may be merged or late
  std::vector<bool> joined = {};  // [bucket]: a tensor joins it and the one before, so both have the same dates
  double capacity = 1.0;          // compute time that communication may count on; above 1 it buys updates with waiting

  // An arena of one slot has nowhere to put a second generation: its updates cannot be delayed.
  void set_slots(std::uint32_t slots) {
    max_generations = std::max<std::uint32_t>(2, slots);
    if (slots < 2) max_staleness_steps = 0;
  }
};

}  // namespace deft::plan
