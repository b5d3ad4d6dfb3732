// Makes a plan of the cycle of updates that the user gives (DEFT_PLAN). Nothing is measured, so the plan is the same in every
// run.
#pragma once

#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// `setup.pinned` as a plan for `setup.buckets`. kInvalid if `setup.limits` forbid that cycle.
Result<model::Plan> pinned_plan(const Setup& setup);

}  // namespace deft::sched
