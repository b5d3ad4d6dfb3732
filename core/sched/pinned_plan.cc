#include "core/sched/pinned_plan.h"

#include <string>

#include "core/model/parts.h"

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
        "set DEFT_SLOTS=" + std::to_string(needed) + " on all workers, or delay less");
  if (limits.max_staleness_steps == 0 && plan.max_merged() > 1)
    return beyond(cycles, "merges steps, and every step is to be updated before the next",
                  "raise DEFT_MAX_STALENESS_STEPS and DEFT_SLOTS above 0 and 1, or merge none");
  if (plan.max_staleness() > limits.max_staleness_steps)
    return beyond(cycles,
                  "applies updates " + std::to_string(plan.max_staleness()) + " steps late, and the limit is " +
                      std::to_string(limits.max_staleness_steps),
                  "raise DEFT_MAX_STALENESS_STEPS (and DEFT_SLOTS above 1), or delay less");
  if (plan.max_merged() > limits.max_merged_steps)
    return beyond(cycles,
                  "merges " + std::to_string(plan.max_merged()) + " steps, and the limit is " +
                      std::to_string(limits.max_merged_steps),
                  "raise DEFT_MAX_MERGED_STEPS, or merge less");
  return {};
}

}  // namespace

Result<model::Plan> pinned_plan(const Setup& setup) {
  model::Plan plan{setup.pinned->usual.period_steps, setup.pinned->usual.generations, {}, 0, 0, {}};
  for (const auto& [bucket, cycle] : setup.pinned->own) plan.own_generations.emplace(bucket, cycle.generations);
  plan.links.resize(setup.links.size());
  if (auto ok = check_limits(plan, setup.limits); !ok) return tl::unexpected(ok.error());
  std::size_t turn = 0;
  const auto add = [&](model::BucketIndex b, std::uint32_t generation) {
    const std::uint64_t bytes = setup.buckets[b].bytes, part = model::even_part_bytes(bytes, setup.partition_bytes);
    for (std::uint64_t at = 0; at < bytes; at += part)
      plan.links[turn++ % setup.links.size()].push_back({b, generation, at, std::min(part, bytes - at), 0});
  };
  for (std::uint32_t step = 0; step < plan.period_steps; ++step)  // as they become ready
    for (model::BucketIndex b = 0; b < setup.buckets.size(); ++b) {
      const auto& generations = plan.generations_of(b);
      for (std::uint32_t g = 0; g < generations.size(); ++g)
        if (generations[g].last_step == step) add(b, g);
    }
  std::vector<std::uint64_t> bytes;
  for (const auto& bucket : setup.buckets) bytes.push_back(bucket.bytes);
  if (auto ok = model::check_plan(plan, bytes, setup.links.size()); !ok)
    return tl::unexpected(ok.error().in("the plan '" + model::to_text(*setup.pinned) + "'"));
  return plan;
}

}  // namespace deft::sched
