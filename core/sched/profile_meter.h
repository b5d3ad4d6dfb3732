// Measures the steps of a training from the events that a scheduler receives, and sends it `profile_measured` when it wants a
// profile.
//
//   auto scheduler = measured(std::move(*made), setup);   // use it in place of the scheduler
//
// All events go on to the wrapped scheduler unchanged. The first profile comes after StepMeter::kComplete complete steps.
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::sched {

std::unique_ptr<Scheduler> measured(std::unique_ptr<Scheduler> scheduler, const Setup& setup);

}  // namespace deft::sched
