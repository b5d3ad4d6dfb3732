// A plan says which steps each update of a bucket merges, and before which step it is applied. It describes one cycle of
// steps, which repeats for ever.
//
//   auto ok = check_plan(plan, buckets);            // checks a plan that another process made
//   const UpdateCycles cycles = cycles_of(plan);    // workers and scheduler follow these (update_cycle.h)
//
// Every step of a bucket is merged into exactly one generation. A generation is applied before the bucket's forward in step
// `apply_step`. Forward waits for a bucket that has not arrived, so a wrong estimate costs time and never changes the result.
// All steps count from the beginning of a cycle. A plan says nothing about links: core/sched/due_queue sends the buckets by
// their due steps. Only the planner has a timetable of the links (core/plan/timetable.h), to prove that the dates can be kept.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/codec_cost.h"

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

struct Plan {
  std::uint32_t period_steps = 1;
  // One cycle of every bucket that own_generations does not name, in order. It merges the steps 0 to period_steps - 1.
  std::vector<PlanGeneration> generations;

  // The times that the planner expects in the steady state. They decide nothing, so the hash leaves them out.
  double step_us = 0;
  double compute_us = 0;

  std::map<BucketIndex, std::vector<PlanGeneration>> own_generations = {};  // the cycles of buckets that have their own

  // The sizes of the buckets are the weights of the means below. Every node knows them, so the hash and the message leave them
  // out.
  std::vector<std::uint64_t> bucket_bytes = {};

  // The codec of each bucket, in a list that the leader has (Profile::codecs); empty: all are exact. Launches tell the nodes, so
  // the hash and the message leave codecs out.
  std::vector<CodecIndex> codecs = {};
  double codec_error = 0;        // the relative squared error of an encoding, a mean over all bytes
  double codec_error_bound = 0;  // no choice of codecs that the links can carry in time, with these updates, has less

  [[nodiscard]] const std::vector<PlanGeneration>& generations_of(BucketIndex bucket) const {
    const auto own = own_generations.find(bucket);
    return own == own_generations.end() ? generations : own->second;
  }
  [[nodiscard]] CodecIndex codec_of(BucketIndex bucket) const {
    return bucket < codecs.size() ? codecs[bucket] : CodecIndex{0};
  }
  [[nodiscard]] double updates_per_step() const;  // the mean over the bytes of all buckets
  [[nodiscard]] std::uint32_t max_staleness() const;
  [[nodiscard]] std::uint32_t max_merged() const;
  [[nodiscard]] double stale_share() const;  // the bytes of buckets that are merged or stale, as a share of all bytes
  // A hash of everything that the nodes must agree on; it is the same on every machine.
  [[nodiscard]] std::uint64_t hash() const;
  bool operator==(const Plan&) const = default;
};

// Checks a plan for `buckets` buckets: each step is merged once, and updates are applied in order and after their steps ran.
// kInvalid if not; the error names the field: "plan.generations[1].apply_step: ...".
Result<void> check_plan(const Plan& plan, std::size_t buckets);

}  // namespace deft::model
