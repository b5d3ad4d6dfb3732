// The makers of the policies, one for each. make_scheduler (scheduler.h) checks the setup and then calls one of them; nobody
// else needs this header. A new policy adds a line here.
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::sched {

Result<std::unique_ptr<Scheduler>> make_fifo(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_mergecomp(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_bytescheduler(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_p3(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_prophet(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_usbyte(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_dear(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_knapsack(const Setup& setup);

}  // namespace deft::sched
