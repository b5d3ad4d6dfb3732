// Builds one plan for one ratio of updates: U generations in P steps.
//
// The builder runs the steps, and each generation in turn goes to the links by list scheduling: of the buckets that are
// ready the one that forward needs first goes first (earliest deadline first, whichever step applies it), to the link
// where it finishes first, and a bucket that would keep a link longer than `part_us` is sent in parts by whichever links
// come free. A generation is applied as early as waiting stays within the tolerance. The last cycle is the plan: by
// then the backlog repeats. On each link the generations go one after the other, so a plan never waits for itself.
#pragma once

#include <cstdint>
#include <optional>

#include "core/model/plan.h"
#include "core/plan/limits.h"
#include "core/plan/problem.h"

namespace deft::plan {

struct UpdateRatio {
  std::uint32_t generations = 1;  // U
  std::uint32_t steps = 1;        // P, at least U

  [[nodiscard]] double rate() const { return static_cast<double>(generations) / steps; }
};

// Nothing where the limits forbid what comes out. `problem` is what to count on: slack for jitter is in it already.
std::optional<model::Plan> build_cycle(const Problem& problem, const Limits& limits, UpdateRatio ratio, double part_us);

// Busy time of all links over their number when one generation is sent by itself: what a generation takes of the links
// in a long run.
double generation_share_us(const Problem& problem, double part_us);

}  // namespace deft::plan
