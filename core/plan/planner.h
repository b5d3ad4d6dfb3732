// The planner: finds the plan that wastes least, for a profile and the user's limits.
//
//   auto plan = find_plan(profile, limits);
//   if (!plan) return tl::unexpected(plan.error());   // "buckets[3].forward_us: -2 is negative", "capacity is not ..."
//
// It tries update ratios of U updates in P steps, up to the rate that the links can carry. schedule_builder builds a
// timetable for each, and evaluate runs it exactly. The order of merit: waiting first (all within the tolerance are alike),
// then the rate of updates, then staleness, then the number of parts (each costs a latency), then a short cycle. If the
// limits forbid every plan without waiting, the plan with the shortest step wins.
//
// Stale gradients cost stability. With momentum beta, gradients that are one update old are stable only up to an effective
// learning rate, eta / (1 - beta), of one over the curvature; fresh ones allow 2 (1 + beta) / (1 - beta) times as much. So
// the planner prefers a plan of fresh updates in every step if it waits at most fresh_tolerance, then a plan in which only
// the largest buckets are stale (stale_plans.h), and then, if stale_share permits, a plan in which all are.
#pragma once

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/model/profile.h"
#include "core/plan/limits.h"
#include "core/plan/timetable.h"

namespace deft::plan {

// A plan for the profile's buckets and links, numbered as the scheduler does (bucket 0 = the profile's last). Errors: a
// profile that check_profile refuses, limits that make no sense.
Result<model::Plan> find_plan(const model::Profile& profile, const Limits& limits);

// The same plan with the timetable that it was chosen by.
Result<Timetable> find_timetable(const model::Profile& profile, const Limits& limits);

// The updates a step that the links can carry at most: min(1, compute / the time that a generation needs).
double update_rate_limit(const model::Profile& profile);

}  // namespace deft::plan
