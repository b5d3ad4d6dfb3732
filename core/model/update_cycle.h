// A cycle says when the generations of a bucket begin, end and are applied, again and again. It is the part of a plan that
// workers need. Buckets that share no tensor may have different cycles: large gradients can be merged and stale while all
// others are applied at once.
//
//   auto cycles = parse_cycles("0@1;3:0-1@3");   // one update a step, but bucket 3 merges two steps and is one step stale
//   cycles->of(3).generations
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"

namespace deft::model {

inline constexpr std::uint32_t kMaxPlanSteps = 1 << 16;  // the longest cycle, and the largest staleness

// One update of a bucket in a cycle.
struct PlanGeneration {
  std::uint32_t first_step = 0;  // the generation merges the steps first_step to last_step
  std::uint32_t last_step = 0;   // below period_steps
  std::uint32_t apply_step = 0;  // above last_step; may lie in a later cycle

  // How many steps run between the newest merged step and the step that sees the update; 0: the update is applied at once.
  [[nodiscard]] std::uint32_t staleness() const { return apply_step - last_step - 1; }
  [[nodiscard]] std::uint32_t merged() const { return last_step - first_step + 1; }
  bool operator==(const PlanGeneration&) const = default;
};

// The cycle of one bucket.
struct UpdateCycle {
  std::uint32_t period_steps = 1;
  std::vector<PlanGeneration> generations = {{0, 0, 1}};  // by default one synchronous update a step
  bool operator==(const UpdateCycle&) const = default;
};

// The cycles of all buckets. All have the same period.
struct UpdateCycles {
  UpdateCycle usual = {};
  std::map<BucketIndex, UpdateCycle> own = {};  // the cycles of the buckets that do not have the usual one

  [[nodiscard]] std::uint32_t period_steps() const { return usual.period_steps; }
  [[nodiscard]] const UpdateCycle& of(BucketIndex bucket) const {
    const auto found = own.find(bucket);
    return found == own.end() ? usual : found->second;
  }
  bool operator==(const UpdateCycles&) const = default;
};

// kInvalid unless each step is merged once, in order, and applied after it has run. The error names the field:
// "plan.generations[1].apply_step: ...".
Result<void> check_cycle(const UpdateCycle& cycle);

// The same for the cycles of `buckets` buckets.
Result<void> check_cycles(const UpdateCycles& cycles, std::size_t buckets);

// A cycle as users write it: `first-last@apply` for each generation, or `first@apply` for a generation of one step.
// "0-1@4,2@5": steps 0 and 1 are merged and applied before step 4, step 2 before step 5; step 3 begins the next cycle.
Result<UpdateCycle> parse_cycle(std::string_view text);
std::string to_text(const UpdateCycle& cycle);

// All cycles as users write them: the usual cycle, then after `;` each other cycle behind the numbers of its buckets:
// "0@1;2,3:0-1@3;5:0-3@6". Cycles of different lengths are repeated until all have the same length.
Result<UpdateCycles> parse_cycles(std::string_view text);
std::string to_text(const UpdateCycles& cycles);

// How many slots the arena needs: the most generations of a bucket that are gathered, sent or wait to be applied at one time.
std::uint32_t slots_needed(const UpdateCycle& cycle);
std::uint32_t slots_needed(const UpdateCycles& cycles);

// The most steps between a gradient and the forward that sees it.
std::uint32_t longest_delay(const UpdateCycle& cycle);
std::uint32_t longest_delay(const UpdateCycles& cycles);

}  // namespace deft::model
