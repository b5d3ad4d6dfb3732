// The planner of the `knapsack` policy: searches the cyclic plan that wastes least.
//
// Candidates are ratios of U updates in P steps, up to the rate that the links can carry, each built by build_cycle and
// then run exactly by evaluate. The order of merit: waiting first (any within the tolerance are alike), then the rate of
// updates (within 1 % alike), then staleness, then the number of parts (each costs a latency), then a short cycle. Where
// the limits forbid every plan without waiting, the plan with the shortest step wins.
//
// Staleness is not free: with momentum beta, gradients that are one update old are stable only up to an effective learning
// rate, eta / (1 - beta), of one over the curvature, where fresh ones allow 2 (1 + beta) / (1 - beta) times as much. So
// with a fresh_tolerance a plan of fresh updates in every step comes first where it waits no longer than that, then one
// in which only the largest buckets are late (late_plans.h), and only then, if stale_share permits, one of all late.
#pragma once

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/model/profile.h"
#include "core/plan/limits.h"

namespace deft::plan {

// A plan for the profile's buckets and links, numbered as the scheduler does (bucket 0 = the profile's last). Errors: a
// profile that check_profile refuses, limits that make no sense.
Result<model::Plan> find_plan(const model::Profile& profile, const Limits& limits);

// The updates a step that the links can carry at most: min(1, compute / the time that a generation needs).
double update_rate_limit(const model::Profile& profile);

}  // namespace deft::plan
