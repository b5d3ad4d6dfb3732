// Plans between waiting and staleness: only as many bytes are stale as compute needs to run without waiting.
//
//   auto table = stale_timetable(problem, limits);
//
// A stale gradient costs stability: with momentum it is safe only at a small fraction of the learning rate of a fresh
// gradient, in the directions in which the loss is most curved. The largest tensors, the wide matrices of fully connected
// layers and embeddings, hold most of the bytes and little of that curvature. So buckets become stale in the order of their
// size, until the rest can be sent fresh in every step.
#pragma once

#include <optional>

#include "core/plan/limits.h"
#include "core/plan/timetable.h"

namespace deft::plan {

// The timetable with the fewest stale bytes that waits at most limits.fresh_tolerance of (limits.capacity times) compute. If no
// timetable does, the timetable that waits least. For each set of stale buckets only the fastest update ratios are tried.
// limits.stale_share bounds the stale bytes. step_us and compute_us of the plan are set. Nothing if the limits forbid every
// such plan.
std::optional<Timetable> stale_timetable(const Problem& problem, const Limits& limits);

}  // namespace deft::plan
