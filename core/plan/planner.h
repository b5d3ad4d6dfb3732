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
// So the planner prefers a plan with fresh updates in every step if it waits at most fresh_tolerance. If the profile has codecs, it
// spends bits next: fresh updates with encodings, as few of them as suffice. Only if the fewest bits still wait, buckets become
// stale: the largest ones first, and all of them if stale_share permits it. A stale plan that saves less than least_stale_gain of the
// fresh plan's step is not worth its staleness. Bits for which the links of a stale plan have time are not given up.
//
// All functions are pure and may be called from any thread.
#pragma once

#include <optional>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/model/profile.h"
#include "core/plan/plan_limits.h"
#include "core/plan/timetable.h"

namespace deft::plan {

// kInvalid if a limit is out of its range.
Result<void> check_limits(const PlanLimits& limits);

// A plan for the profile's buckets and links. It numbers buckets as the scheduler does: bucket 0 is the profile's last one.
// kInvalid if check_profile refuses the profile, or check_limits the limits.
Result<model::Plan> find_plan(const model::Profile& profile, const PlanLimits& limits);

// The same plan, with the timetable that proves it.
Result<Timetable> find_timetable(const model::Profile& profile, const PlanLimits& limits);

// The timetable of one fresh update in every step that waits least (planner.cc), or the first one found whose step takes at most
// `enough_us`.
std::optional<Timetable> fresh_timetable(const Problem& problem, const PlanLimits& limits, double enough_us = 0);

// The planner's choice after bits (stale_plans.cc). The largest tensors, the wide matrices of fully connected layers and embeddings,
// hold most of the bytes, and little of the curvature that makes stale gradients unstable. So buckets become stale in the order
// of their size, until the rest can be sent fresh in every step.
//
// The timetable with the fewest stale bytes that waits at most limits.fresh_tolerance of (limits.capacity times) compute. If no
// timetable does, the timetable that waits least. For each set of stale buckets only the fastest update ratios are tried. More than
// BucketGroups::kFewBuckets buckets are planned in groups of neighbours.
// limits.stale_share bounds the stale bytes. step_us and compute_us of the plan are set. Nothing if the limits forbid every
// such plan.
std::optional<Timetable> stale_timetable(const Problem& problem, const PlanLimits& limits);

}  // namespace deft::plan
