// A clock for who looks again and again whether something has come. Between two looks the process may stand still, as when a job is
// suspended as a whole: such a time counts as one look, so a deadline by this clock leaves out the standstill.
//
//   LookClock clock(machine);
//   const TimeUs deadline_us = clock.now_us() + timeout_us;
//   while (clock.now_us() < deadline_us) ...   // look, and wait for less than kMostUs
//
// The daemon's clock of the same kind has an event loop to tell of a standstill (daemon/base/running_clock.h). Any thread.
#pragma once

#include <algorithm>
#include <mutex>

#include "core/base/clock.h"

namespace deft::client {

class LookClock final : public Clock {
 public:
  static constexpr TimeUs kMostUs = 500'000;  // at most this much time passes between two looks

  explicit LookClock(const Clock& machine) : machine_(machine), last_us_(machine.now_us()) {}  // `machine` outlives it

  [[nodiscard]] TimeUs now_us() const override {
    const std::lock_guard lock(mutex_);
    const TimeUs machine_us = machine_.now_us();
    passed_us_ += std::min(machine_us - last_us_, kMostUs);
    last_us_ = machine_us;
    return passed_us_;
  }

 private:
  const Clock& machine_;
  mutable std::mutex mutex_;
  mutable TimeUs last_us_;  // by the machine's clock
  mutable TimeUs passed_us_ = 0;
};

}  // namespace deft::client
