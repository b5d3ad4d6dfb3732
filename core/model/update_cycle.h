// When the generations of one bucket begin, end and are applied, over and over again: the part of a plan that workers
// need. Buckets that no tensor joins may have cycles of their own: large gradients can be merged and late while all
// others are applied at once.
//
//   auto cycles = parse_cycles("0@1;3:0-1@3");   // one update a step, but bucket 3 merges two and is one step late
//   cycles->of(3).generations
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/plan.h"

namespace deft::model {

struct UpdateCycle {
  std::uint32_t period_steps = 1;
  std::vector<PlanGeneration> generations = {{0, 0, 1}};  // synchronous, unless said otherwise
  bool operator==(const UpdateCycle&) const = default;
};

// Of all buckets; all have the same period.
struct UpdateCycles {
  UpdateCycle usual;
  std::map<BucketIndex, UpdateCycle> own;  // of the buckets that do not have the usual one

  [[nodiscard]] const UpdateCycle& of(BucketIndex bucket) const {
    const auto found = own.find(bucket);
    return found == own.end() ? usual : found->second;
  }
  bool operator==(const UpdateCycles&) const = default;
};

UpdateCycles cycles_of(const Plan& plan);

// The steps in order, each merged once and applied after it has run. Errors name the field as a plan's.
Result<void> check_cycle(const UpdateCycle& cycle);

// As users write it: the generations of one cycle, `first-last@apply` each, `first@apply` where it is one step.
// "0-1@4,2@5": steps 0 and 1 are merged and applied before step 4, step 2 before step 5; step 3 begins the next cycle.
Result<UpdateCycle> parse_cycle(std::string_view text);
std::string to_text(const UpdateCycle& cycle);

// The usual cycle, then after `;` each other one, with the numbers of its buckets: "0@1;2,3:0-1@3;5:0-3@6". Cycles are
// repeated until all are of one length.
Result<UpdateCycles> parse_cycles(std::string_view text);
std::string to_text(const UpdateCycles& cycles);

// Generations of one bucket that are gathered, sent or waiting to be applied at the same time: slots that the arena needs.
std::uint32_t slots_needed(const UpdateCycle& cycle);
std::uint32_t slots_needed(const UpdateCycles& cycles);

// Most steps between a gradient and the forward that sees it.
std::uint32_t longest_delay(const UpdateCycle& cycle);
std::uint32_t longest_delay(const UpdateCycles& cycles);

}  // namespace deft::model
