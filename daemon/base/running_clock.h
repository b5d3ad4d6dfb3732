// The time during which this process ran, in microseconds: a clock that leaves out the time in which it stood still.
//
//   RunningClock clock(machine_clock());
//   clock.expect_by(due_us);       // the event loop's next timer
//   clock.leave_out_standstill();  // the timer comes 20 s late: the process was stopped, or its machine suspended
//
// Peers that stood still as well are not late, so deadlines and silences are counted by this clock (daemon/base/reactor.h). It never goes
// back: it waits at most kStandstillUs behind an expected timer until the event loop says that it goes on. So nobody sees a standstill,
// whichever thread goes on first. Times that other processes measured are compared with MonotonicClock.
// Any thread reads it, one thread moves it.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "core/base/clock.h"

namespace deft::daemon {

class RunningClock final : public Clock {
 public:
  static constexpr TimeUs kStandstillUs = 500'000;  // a timer that is later than this tells of a standstill

  explicit RunningClock(const Clock& machine) : machine_(machine) {}  // `machine` outlives this clock

  [[nodiscard]] TimeUs now_us() const override {
    const TimeUs latest_us = latest_us_.load(std::memory_order_acquire);
    return std::min(latest_us, ran_us());
  }
  [[nodiscard]] TimeUs machine_us() const { return machine_.now_us(); }

  // When the thread of the event loop runs again, at the latest, by this clock. Nothing: that is unknown.
  void expect_by(std::optional<TimeUs> due_us) {
    latest_us_.store(due_us ? *due_us + kStandstillUs : kNever, std::memory_order_release);
  }
  // A timer is added. It has no effect if nothing is expected.
  void expect_also_by(TimeUs due_us) {
    const TimeUs latest_us = latest_us_.load(std::memory_order_relaxed);
    if (latest_us != kNever && due_us + kStandstillUs < latest_us) expect_by(due_us);
  }

  // How late the expected timer is, if that tells of a standstill; else 0. Then this clock leaves out what it waited.
  TimeUs leave_out_standstill() {
    const TimeUs still_us = unnoticed_us();
    if (still_us == 0) return 0;
    left_out_us_.fetch_add(still_us - kStandstillUs, std::memory_order_release);
    newest_us_.store(still_us, std::memory_order_relaxed);
    newest_end_us_.store(now_us(), std::memory_order_relaxed);
    return still_us;
  }
  // How long the process stood still the last time, if it went on less than `within_us` ago; else 0. It also knows of a standstill that
  // has not been left out yet.
  [[nodiscard]] TimeUs stood_still_us(TimeUs within_us) const {
    if (const TimeUs still_us = unnoticed_us(); still_us != 0) return still_us;
    const TimeUs ago_us = now_us() - newest_end_us_.load(std::memory_order_relaxed);
    return ago_us < within_us ? newest_us_.load(std::memory_order_relaxed) : 0;
  }

 private:
  static constexpr TimeUs kNever = std::numeric_limits<TimeUs>::max();

  // The thread may stand still between any two reads: latest_us_ is read first, the machine's clock last.
  [[nodiscard]] TimeUs ran_us() const {
    const TimeUs left_out_us = left_out_us_.load(std::memory_order_acquire);
    return machine_.now_us() - left_out_us;
  }
  [[nodiscard]] TimeUs unnoticed_us() const {
    const TimeUs latest_us = latest_us_.load(std::memory_order_acquire);
    const TimeUs ran_us = this->ran_us();
    return ran_us > latest_us ? ran_us - latest_us + kStandstillUs : 0;
  }

  const Clock& machine_;
  std::atomic<TimeUs> left_out_us_{0};
  std::atomic<TimeUs> latest_us_{kNever};                // what this clock shows at most
  std::atomic<TimeUs> newest_us_{0}, newest_end_us_{0};  // of the last time that was left out
};

}  // namespace deft::daemon
