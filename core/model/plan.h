// A plan: a policy's decisions for a cycle of steps that repeats for ever.
//
// Cycle c covers the steps start + c * period_steps and on, and for each bucket as many generations as it has in a cycle.
// Every step of a bucket is merged into exactly one generation. A generation is applied before the bucket's forward in
// step `apply_step`; forward waits for a bucket that is late, so a wrong estimate costs time and never the result. That
// is what a plan decides. All steps count from the beginning of a cycle.
//
// The links' lists are the proof that its dates can be kept: each link sends its parts in the order of its list, the list
// of cycle 0, then of cycle 1, and so on; a part waits until its bucket is ready in the last step that its generation
// merges. In cycle c a part of `cycles_back` k is one of cycle c - k: what is late goes when the more urgent parts of later
// steps leave room. What runs keeps the dates, and takes what is ready by them (core/sched/due_queue).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"

namespace deft::model {

inline constexpr std::uint32_t kMaxPlanSteps = 1 << 16;   // of a cycle, and of staleness
inline constexpr std::uint32_t kMaxCyclesBack = 1 << 10;  // of a part

struct PlanGeneration {
  std::uint32_t first_step = 0;  // merges the steps first_step to last_step
  std::uint32_t last_step = 0;   // below period_steps
  std::uint32_t apply_step = 0;  // above last_step; may lie in a later cycle

  // Steps that ran between the newest merged step and the one that sees the update: 0 where it is applied at once.
  [[nodiscard]] std::uint32_t staleness() const { return apply_step - last_step - 1; }
  [[nodiscard]] std::uint32_t merged() const { return last_step - first_step + 1; }
  bool operator==(const PlanGeneration&) const = default;
};

struct PlanPart {
  BucketIndex bucket = 0;        // numbered as in the arena: bucket 0 is the first that backward produces
  std::uint32_t generation = 0;  // of its cycle
  std::uint64_t offset = 0;      // in the bucket
  std::uint64_t bytes = 0;
  std::uint32_t cycles_back = 0;
  bool operator==(const PlanPart&) const = default;
};

struct Plan {
  std::uint32_t period_steps = 1;
  // Of one cycle, in order; together they merge the steps 0 to period_steps - 1. Of all buckets but own_generations'.
  std::vector<PlanGeneration> generations;
  std::vector<std::vector<PlanPart>> links;  // for each link the parts of one cycle, in the order in which they start

  // What the planner expects in the steady state. Not part of the hash: it decides nothing.
  double step_us = 0;
  double compute_us = 0;

  std::map<BucketIndex, std::vector<PlanGeneration>> own_generations = {};  // of the buckets that have other ones

  [[nodiscard]] const std::vector<PlanGeneration>& generations_of(BucketIndex bucket) const {
    const auto own = own_generations.find(bucket);
    return own == own_generations.end() ? generations : own->second;
  }
  [[nodiscard]] std::map<BucketIndex, double> bucket_bytes() const;  // of each bucket, from the parts that send it
  [[nodiscard]] double updates_per_step() const;                     // a mean over the bytes of all buckets
  [[nodiscard]] std::uint32_t max_staleness() const;
  [[nodiscard]] std::uint32_t max_merged() const;
  [[nodiscard]] double stale_share() const;  // of all bytes, those of buckets that are merged or late
  [[nodiscard]] std::size_t parts() const;
  // Of everything that the nodes must agree on; the same on every machine.
  [[nodiscard]] std::uint64_t hash() const;
  bool operator==(const Plan&) const = default;
};

// Checks a plan for buckets of these sizes: steps merged once, applied after they ran and in order, and every byte of
// every bucket in every generation sent exactly once. An error names the field: "plan.generations[1].apply_step: ...".
Result<void> check_plan(const Plan& plan, std::span<const std::uint64_t> bucket_bytes, std::size_t links);

}  // namespace deft::model
