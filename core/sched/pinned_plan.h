// A plan for a cycle of updates that the user gives: measured nothing, planned nothing, the same in every run.
#pragma once

#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// `setup.pinned` with parts for `setup.buckets` and `setup.links`: the buckets in the order in which they become ready, the
// links taking turns. An error where `setup.limits` forbid that cycle.
Result<model::Plan> pinned_plan(const Setup& setup);

}  // namespace deft::sched
