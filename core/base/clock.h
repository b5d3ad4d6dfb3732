// Time in Deft: monotonic microseconds. The clock of day may jump: only the files that scripts/lint lists read it.
//
//   const TimeUs deadline_us = MonotonicClock::now() + timeout_us;
//
// Code takes a `Clock&` if its tests must not wait; the tests then move a ManualClock by hand.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace deft {

using TimeUs = std::int64_t;  // microseconds; a point in time counts from an arbitrary start

// Tells the time in microseconds.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
};

// CLOCK_MONOTONIC: all processes of a machine read the same time, and a change of the date does not move it. Any thread.
class MonotonicClock final : public Clock {
 public:
  [[nodiscard]] TimeUs now_us() const override { return now(); }
  [[nodiscard]] static TimeUs now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return TimeUs{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
  }
};

// The same as an object that lives as long as the process.
inline const Clock& machine_clock() {
  static const MonotonicClock kClock;
  return kClock;
}

// A clock for tests: it stands still until advance() is called. Not thread-safe.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimeUs now_us() const override { return now_; }
  void advance(TimeUs by_us) { now_ += by_us; }

 private:
  TimeUs now_ = 0;
};

}  // namespace deft
