// Policies as published, which only the simulator runs, to compare the training's policies with. Nothing that trains depends
// on this folder.
//
//   auto scheduler = papers::make_scheduler(setup);   // knows core/sched's policies, too
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::papers {

// DeFT's Algorithm 2 with its greedy multi-knapsack. It needs its profile before the first step (wants_profile): any other event
// before it is a std::logic_error.
Result<std::unique_ptr<sched::Scheduler>> make_knapsack_paper(const sched::Setup& setup);

// A scheduler for `setup.policy`, of this folder or of core/sched. Errors as sched::make_scheduler has them.
Result<std::unique_ptr<sched::Scheduler>> make_scheduler(const sched::Setup& setup);

}  // namespace deft::papers
