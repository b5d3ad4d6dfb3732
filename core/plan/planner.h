// The planner finds the plan that wastes the least time, for a profile and the user's limits.
//
//   auto plan = find_plan(profile, limits);
//   if (!plan) return tl::unexpected(plan.error());   // "buckets[3].forward_us: -2 is negative", "capacity is not ..."
//
// It tries update ratios of U updates in P steps, up to the rate that the links can carry. schedule_builder builds a
// timetable for each, and evaluate() runs it exactly. Plans are compared by waiting first; plans within the tolerance are
// alike. Then come the rate of updates, staleness, the number of parts (each costs a latency), and the length of the cycle. If
// the limits forbid every plan without waiting, the plan with the shortest step wins.
//
// Stale gradients cost stability. With momentum beta, a gradient that is one update old is stable only up to an effective
// learning rate, eta / (1 - beta), of one over the curvature. A fresh gradient allows 2 (1 + beta) / (1 - beta) times as much.
// So the planner prefers a plan with fresh updates in every step if it waits at most fresh_tolerance. Its second choice is a
// plan in which only the largest buckets are stale (stale_plans.h). Its third choice, if stale_share permits it, is a plan in
// which all buckets are stale.
//
// All functions are pure and may be called from any thread.
#pragma once

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/model/profile.h"
#include "core/plan/limits.h"
#include "core/plan/timetable.h"

namespace deft::plan {

// A plan for the profile's buckets and links. It numbers buckets as the scheduler does: bucket 0 is the profile's last one.
// kInvalid if check_profile refuses the profile, or if the limits contradict each other.
Result<model::Plan> find_plan(const model::Profile& profile, const Limits& limits);

// The same plan, with the timetable that proves it.
Result<Timetable> find_timetable(const model::Profile& profile, const Limits& limits);

// The most updates a step that the links can carry: min(1, compute / the time that a generation needs).
double update_rate_limit(const model::Profile& profile);

}  // namespace deft::plan
