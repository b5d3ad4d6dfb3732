// Builds one plan in which some buckets are merged and late, and all others are updated in every step with its own
// gradients, before the next forward.
//
// The builder runs the steps. Fresh buckets go to the links as they become ready, the one that forward needs first before
// the others; late ones fill what is left of the links' time, the oldest first, in parts that end before the next fresh
// bucket is ready. Each late bucket is applied as early as waiting stays within the tolerance. The plan is one cycle of
// the run, once the backlog repeats.
#pragma once

#include <optional>
#include <vector>

#include "core/plan/schedule_builder.h"

namespace deft::plan {

// `late[b]`: bucket b follows `ratio`. Nothing where the limits forbid what comes out. `problem` is what to count on:
// slack for jitter is in it already.
std::optional<model::Plan> build_stale_cycle(const Problem& problem, const Limits& limits,
                                             const std::vector<bool>& late, UpdateRatio ratio, double part_us);

}  // namespace deft::plan
