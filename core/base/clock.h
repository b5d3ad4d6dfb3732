// The one clock: monotonic microseconds. Code that must be tested without waiting takes a `Clock&`.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace deft {

using TimeUs = std::int64_t;  // microseconds; absolute times count from an arbitrary start

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
};

// CLOCK_MONOTONIC: the same for all processes of one machine, unmoved by changes of the date.
class MonotonicClock final : public Clock {
 public:
  [[nodiscard]] TimeUs now_us() const override { return now(); }
  [[nodiscard]] static TimeUs now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return TimeUs{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
  }
};

// A clock that tests move by hand.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimeUs now_us() const override { return now_; }
  void advance(TimeUs by_us) { now_ += by_us; }

 private:
  TimeUs now_ = 0;
};

}  // namespace deft
