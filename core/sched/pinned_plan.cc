#include "core/sched/pinned_plan.h"

#include <string>

namespace deft::sched {
namespace {

tl::unexpected<Error> beyond(const model::UpdateCycles& cycles, const std::string& what, const std::string& fix) {
  return fail(ErrorKind::kInvalid, "the plan '" + model::to_text(cycles) + "' " + what, fix);
}

Result<void> check_limits(const model::Plan& plan, const plan::Limits& limits) {
  const auto cycles = model::cycles_of(plan);
  if (const auto needed = model::slots_needed(cycles); needed > limits.max_generations)
    return beyond(
        cycles, "needs an arena of " + std::to_string(needed) + " slots, of " + std::to_string(limits.max_generations),
        "delay less, or merge more steps in each update");
  if (limits.max_staleness_steps == 0 && plan.max_merged() > 1)
    return beyond(cycles, "merges steps, and every step is to be updated before the next",
                  "raise DEFT_MAX_STALENESS_STEPS above 0, or merge none");
  if (plan.max_staleness() > limits.max_staleness_steps)
    return beyond(cycles,
                  "applies updates " + std::to_string(plan.max_staleness()) + " steps late, and the limit is " +
                      std::to_string(limits.max_staleness_steps),
                  "raise DEFT_MAX_STALENESS_STEPS, or delay less");
  if (plan.max_merged() > limits.max_merged_steps)
    return beyond(cycles,
                  "merges " + std::to_string(plan.max_merged()) + " steps, and the limit is " +
                      std::to_string(limits.max_merged_steps),
                  "raise DEFT_MAX_MERGED_STEPS, or merge less");
  return {};
}

}  // namespace

Result<model::Plan> pinned_plan(const Setup& setup) {
  model::Plan plan;
  plan.period_steps = setup.pinned->usual.period_steps;
  plan.generations = setup.pinned->usual.generations;
  for (const auto& [bucket, cycle] : setup.pinned->own) plan.own_generations.emplace(bucket, cycle.generations);
  for (const auto& bucket : setup.buckets) plan.bucket_bytes.push_back(bucket.bytes);
  if (auto ok = check_limits(plan, setup.limits); !ok) return tl::unexpected(ok.error());
  if (auto ok = model::check_plan(plan, setup.buckets.size()); !ok)
    return tl::unexpected(ok.error().in("the plan '" + model::to_text(*setup.pinned) + "'"));
  return plan;
}

}  // namespace deft::sched
