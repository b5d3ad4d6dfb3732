// Builds the timetable of one update ratio: U generations in P steps, for all buckets or for the stale ones alone.
//
//   auto table = build_uniform(problem, limits, {2, 3}, part_us);         // all buckets: two updates in three steps
//   auto table = build_mixed(problem, limits, stale, {1, 2}, part_us);    // stale buckets: one in two steps; others: every step
//
// A builder runs the steps and sends each generation by list scheduling. Of the ready buckets, the bucket that forward needs
// first goes first, to the link on which it finishes first. A bucket that would occupy a link for longer than `part_us` is
// sent in parts, by whichever links come free. A generation is applied as early as waiting stays within the tolerance. The
// timetable is one cycle of the run, taken when the backlog repeats.
//
// Uniform: on each link the generations go one after the other, so a plan never waits for itself. Mixed: stale buckets use the
// time that fresh buckets leave on the links. The oldest goes first, in parts that end before the next fresh bucket is ready.
//
// Both return nothing if the limits forbid the timetable. `problem` already contains the slack for jitter.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/plan_limits.h"
#include "core/plan/timetable.h"

namespace deft::plan {

// U updates in P steps.
struct UpdateRatio {
  std::uint32_t generations = 1;  // U
  std::uint32_t steps = 1;        // P, at least U

  [[nodiscard]] double rate() const { return static_cast<double>(generations) / steps; }
  [[nodiscard]] std::uint32_t first_step(std::uint64_t generation) const {
    return static_cast<std::uint32_t>(generation * steps / generations);
  }
};

std::optional<Timetable> build_uniform(const Problem& problem, const PlanLimits& limits, UpdateRatio ratio,
                                       double part_us);

// `stale[b]`: bucket b follows `ratio`; all others are updated in every step, before the next forward.
std::optional<Timetable> build_mixed(const Problem& problem, const PlanLimits& limits, const std::vector<bool>& stale,
                                     UpdateRatio ratio, double part_us);

}  // namespace deft::plan
