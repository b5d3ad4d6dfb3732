// The newest steps of a group and how long each one took, for the status: `deft tune` compares settings by them.
//
//   StepTimes times;
//   times.gradient_came(step, now_us);             // of each bucket; the first one of a step counts
//   times.first_step();  times.us();               // step first_step() took us()[0], the next one us()[1], ...
//
// A step lasts from its first gradient to that of the next step. There settings change, too, so a step has one setting alone. If a
// step is left out, as by updates that merge steps, the list begins anew. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"

namespace deft::daemon {

class StepTimes {
 public:
  static constexpr std::size_t kMost = 256;

  void gradient_came(std::uint64_t step, TimeUs now_us) {
    if (began_us_ && step <= step_) return;
    if (began_us_ && step == step_ + 1)
      add(now_us - *began_us_);
    else
      us_.clear();
    step_ = step;
    began_us_ = now_us;
  }
  [[nodiscard]] std::uint64_t first_step() const { return step_ - us_.size(); }
  [[nodiscard]] const std::vector<TimeUs>& us() const { return us_; }

 private:
  void add(TimeUs us) {
    if (us_.size() == kMost) us_.erase(us_.begin());
    us_.push_back(us);
  }

  std::vector<TimeUs> us_;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> began_us_;
};

}  // namespace deft::daemon
