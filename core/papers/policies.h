// Policies as their papers publish them. Only the simulator runs them, to compare the policies of training with them. Nothing
// that trains depends on this folder.
//
//   auto scheduler = papers::make_scheduler(setup);   // also knows the policies of core/sched
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::papers {

// DeFT's Algorithm 2 with its greedy multi-knapsack. It needs its profile before the first step (wants_profile). Any other
// event before the profile throws std::logic_error.
Result<std::unique_ptr<sched::Scheduler>> make_knapsack_paper(const sched::Setup& setup);

// A scheduler for `setup.policy`, from this folder or from core/sched. The errors are those of sched::make_scheduler.
Result<std::unique_ptr<sched::Scheduler>> make_scheduler(const sched::Setup& setup);

}  // namespace deft::papers
