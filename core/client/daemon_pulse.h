// Notices that the daemon hangs: it lives, but it does not count its heartbeats any more (core/shm/layout.h).
//
//   DaemonPulse pulse(limit_us);
//   if (const auto silent_us = pulse.look(rings.heartbeats(), now_us)) ...   // with every look that brought nothing
//
// Only time in which this process looks counts. Between two looks it computes, or it may stand still together with the daemon, as when
// a job is suspended as a whole: such a time counts as one look. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/clock.h"

namespace deft::client {

class DaemonPulse {
 public:
  explicit DaemonPulse(TimeUs limit_us) : limit_us_(limit_us) {}

  // How often to look at least.
  [[nodiscard]] TimeUs interval_us() const { return limit_us_ / 4; }

  // A value: the daemon hangs, and was seen to for so long.
  std::optional<TimeUs> look(std::uint64_t heartbeats, TimeUs now_us) {
    const TimeUs passed_us = std::min(now_us - std::exchange(last_us_, now_us), interval_us());
    const bool lives = heartbeats == 0 || std::exchange(heartbeats_, heartbeats) != heartbeats;
    silent_us_ = lives ? 0 : silent_us_ + passed_us;
    return silent_us_ >= limit_us_ ? std::optional(silent_us_) : std::nullopt;
  }

 private:
  const TimeUs limit_us_;
  std::uint64_t heartbeats_ = 0;
  TimeUs last_us_ = 0;
  TimeUs silent_us_ = 0;
};

}  // namespace deft::client
