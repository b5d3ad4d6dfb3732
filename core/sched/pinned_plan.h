// A plan for a cycle of updates that the user gives: measured nothing, planned nothing, the same in every run.
#pragma once

#include <vector>

#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// `setup.pinned` with parts for `setup.buckets` and `setup.links`: the buckets are sent in the order in which they become
// ready, the links taking turns but for the `lost` ones (a flag for each). An error where `setup.limits` forbid that cycle.
Result<model::Plan> pinned_plan(const Setup& setup, const std::vector<bool>& lost);

}  // namespace deft::sched
