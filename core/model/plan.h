// A plan: which steps each update of a bucket merges, and before which step it is applied, for a cycle of steps that repeats
// for ever.
//
//   auto ok = check_plan(plan, buckets);            // before a plan that came from elsewhere is followed
//   const UpdateCycles cycles = cycles_of(plan);    // what runs (update_cycle.h, update_schedule.h)
//
// Cycle c covers the steps start + c * period_steps and on, and for each bucket as many generations as it has in a cycle.
// Every step of a bucket is merged into exactly one generation. A generation is applied before the bucket's forward in
// step `apply_step`; forward waits for a bucket that has not arrived, so a wrong estimate costs time and never the result.
// All steps count from the beginning of a cycle. A plan says nothing of links: what is ready goes by its due step
// (core/sched/due_queue), and the planner keeps its timetable, which shows that the dates can be kept, to itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"

namespace deft::model {

inline constexpr std::uint32_t kMaxPlanSteps = 1 << 16;  // of a cycle, and of staleness

struct PlanGeneration {
  std::uint32_t first_step = 0;  // merges the steps first_step to last_step
  std::uint32_t last_step = 0;   // below period_steps
  std::uint32_t apply_step = 0;  // above last_step; may lie in a later cycle

  // Steps that ran between the newest merged step and the one that sees the update: 0 where it is applied at once.
  [[nodiscard]] std::uint32_t staleness() const { return apply_step - last_step - 1; }
  [[nodiscard]] std::uint32_t merged() const { return last_step - first_step + 1; }
  bool operator==(const PlanGeneration&) const = default;
};

struct Plan {
  std::uint32_t period_steps = 1;
  // One cycle of every bucket that own_generations does not name, in order; they merge the steps 0 to period_steps - 1.
  std::vector<PlanGeneration> generations;

  // What the planner expects in the steady state. Not part of the hash: it decides nothing.
  double step_us = 0;
  double compute_us = 0;

  std::map<BucketIndex, std::vector<PlanGeneration>> own_generations = {};  // of the buckets that have other ones

  // The sizes of the buckets: the weights of the means below. Not part of the hash, and not sent: every node knows them.
  std::vector<std::uint64_t> bucket_bytes = {};

  [[nodiscard]] const std::vector<PlanGeneration>& generations_of(BucketIndex bucket) const {
    const auto own = own_generations.find(bucket);
    return own == own_generations.end() ? generations : own->second;
  }
  [[nodiscard]] double updates_per_step() const;  // a mean over the bytes of all buckets
  [[nodiscard]] std::uint32_t max_staleness() const;
  [[nodiscard]] std::uint32_t max_merged() const;
  [[nodiscard]] double stale_share() const;  // of all bytes, the share of buckets that are merged or stale
  // Of everything that the nodes must agree on; the same on every machine.
  [[nodiscard]] std::uint64_t hash() const;
  bool operator==(const Plan&) const = default;
};

// Checks a plan for so many buckets: steps merged once, applied after they ran and in order. An error names the field:
// "plan.generations[1].apply_step: ...".
Result<void> check_plan(const Plan& plan, std::size_t buckets);

}  // namespace deft::model
