// The limits that the user sets for plans, and the slack that the planner keeps.
//
//   PlanLimits limits = training_limits();   // or PlanLimits{}, the default of `deft simulate`
//   limits.set_slots(slots);
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/model/codec_cost.h"

namespace deft::plan {

struct CodecLimits {
  std::size_t last = model::kMaxCodecs;  // of the profile's codecs that may be used; 0: all is exact
  double negligible_error =
      0;  // model::CodecCost::error that costs no accuracy: up to it, faster is better than more exact
};

struct PlanLimits {
  std::uint32_t max_staleness_steps = 16;  // model::PlanGeneration::staleness; 0: synchronous, one update a step
  std::uint32_t max_merged_steps = 16;     // the most steps in one generation
  std::uint32_t max_generations = 8;       // the most generations under way at once: the slots of the arena
  double jitter_margin = 0.02;             // the share of the links' time that stays free
  double bubble_tolerance = 0.005;         // waiting that counts as none, as a share of compute
  double rate_tolerance = 0.02;  // the share of updates that may be given up for less staleness and fewer parts
  double fresh_tolerance = 0;    // waiting, as a share of compute, that is accepted for fresh updates in every step
  double least_stale_gain = 0;   // the share of a step that stale updates must save at least, or updates stay fresh
  double stale_share = 1;        // the share of all bytes that may be merged or stale
  std::vector<bool> joined =
      {};  // [bucket]: true if it shares a tensor with the bucket before, so both have the same dates
  CodecLimits codecs = {};
  double capacity = 1.0;  // the time for communication, as a multiple of compute; above 1 compute waits

  // Limits the generations to the slots of an arena. With one slot there is no place for a second generation, so updates are
  // not delayed.
  void set_slots(std::uint32_t slots) {
    max_generations = std::max<std::uint32_t>(2, slots);
    if (slots < 2) max_staleness_steps = 0;
  }
};

// With int8 (error 5e-5) and error feedback a training ends as without: docs/benchmarks.md, "Fewer bits".
inline constexpr double kNegligibleError = 1e-4;

// A stale update is worth less. A transformer whose plan was stale to save some percent of a step needed over a tenth more steps to the
// same loss: docs/benchmarks-log.md.
inline constexpr double kLeastStaleGain = 0.15;

// The limits of a training with the default options.
inline PlanLimits training_limits() {
  PlanLimits limits;
  limits.max_staleness_steps = 4;
  limits.max_generations = 4;
  limits.jitter_margin = 0.08;    // times vary, and links are slower while the cores compute
  limits.fresh_tolerance = 0.01;  // step times vary by more; so a network that nearly keeps up costs no staleness
  limits.least_stale_gain = kLeastStaleGain;
  limits.stale_share = 0.9;
  limits.codecs.negligible_error = kNegligibleError;
  return limits;
}

}  // namespace deft::plan
