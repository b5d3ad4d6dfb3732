// The driver's side of `profile_measured` in training: measures the steps that a scheduler is told of, and gives the scheduler
// a profile when it wants one.
//
//   auto scheduler = measured(std::move(*made), setup);   // used as the scheduler itself
//
// All events go on to the scheduler unchanged. The first profile comes after StepMeter::kComplete complete steps.
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::sched {

std::unique_ptr<Scheduler> measured(std::unique_ptr<Scheduler> scheduler, const Setup& setup);

}  // namespace deft::sched
