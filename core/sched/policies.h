// One maker for each policy; make_scheduler chooses among them and has checked the setup.
#pragma once

#include <memory>

#include "core/sched/scheduler.h"

namespace deft::sched {

Result<std::unique_ptr<Scheduler>> make_fifo(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_bytescheduler(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_p3(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_prophet(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_usbyte(const Setup& setup);
Result<std::unique_ptr<Scheduler>> make_knapsack(const Setup& setup);

}  // namespace deft::sched
