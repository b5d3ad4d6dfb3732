// The time during which this process ran, in microseconds: a clock that can leave out the time in which it stood still.
//
//   RunningClock clock(system);
//   clock.leave_out(20'000'000);   // the process was stopped, or its machine suspended
//
// Peers that stood still as well are not late, so deadlines and silences are counted by this clock (daemon/base/reactor.h). Times that
// other processes measured are compared with MonotonicClock. Any thread reads it.
#pragma once

#include <atomic>

#include "core/base/clock.h"

namespace deft::daemon {

// The machine's clock, as long as the process lives.
inline const Clock& system_clock() {
  static const MonotonicClock kClock;
  return kClock;
}

class RunningClock final : public Clock {
 public:
  explicit RunningClock(const Clock& base) : base_(base) {}  // `base` outlives this clock

  [[nodiscard]] TimeUs now_us() const override { return base_.now_us() - left_out_us_.load(std::memory_order_relaxed); }
  void leave_out(TimeUs us) {
    left_out_us_.fetch_add(us, std::memory_order_relaxed);
    newest_us_.store(us, std::memory_order_relaxed);
    newest_end_us_.store(now_us(), std::memory_order_relaxed);
  }
  // How long the process stood still the last time, if it went on less than `within_us` ago; else 0.
  [[nodiscard]] TimeUs stood_still_us(TimeUs within_us) const {
    const TimeUs ago_us = now_us() - newest_end_us_.load(std::memory_order_relaxed);
    return ago_us < within_us ? newest_us_.load(std::memory_order_relaxed) : 0;
  }

 private:
  const Clock& base_;
  std::atomic<TimeUs> left_out_us_{0};
  std::atomic<TimeUs> newest_us_{0}, newest_end_us_{0};  // of the last time that was left out
};

}  // namespace deft::daemon
