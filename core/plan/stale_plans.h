// The knapsack's middle way between waiting and lateness: as few late bytes as keep compute from waiting.
//
// A late gradient costs stability: with momentum it is safe only at a small fraction of the learning rate of a fresh
// one, in the directions in which the loss is most curved. The largest tensors, the wide matrices of fully connected
// layers and embeddings, hold most of the bytes and little of that curvature. So buckets become late in the order of
// their size, until the rest can be sent afresh in every step.
#pragma once

#include <optional>

#include "core/model/plan.h"
#include "core/plan/limits.h"
#include "core/plan/problem.h"

namespace deft::plan {

// The plan with the fewest late bytes that waits at most limits.fresh_tolerance of compute (of limits.capacity times
// compute), or the one that waits least where none does; limits.stale_share bounds the late bytes. step_us and compute_us are set. Nothing where the limits
// forbid every such plan.
std::optional<model::Plan> plan_stale_buckets(const Problem& problem, const Limits& limits);

}  // namespace deft::plan
