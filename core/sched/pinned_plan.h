// A plan for a cycle of updates that the user gives: measured nothing, planned nothing, the same in every run.
#pragma once

#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// `setup.pinned` as a plan for `setup.buckets`. An error if `setup.limits` forbid that cycle.
Result<model::Plan> pinned_plan(const Setup& setup);

}  // namespace deft::sched
