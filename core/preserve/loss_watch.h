// Detects that the loss has risen, which is evidence against stale updates whatever the model of training says.
//
//   watch.take(loss, trend);   // each sample, after trend.take()
//   watch.risen(target)        // true: the newest samples lie clearly above the lowest level so far
//
// If a training does not tolerate stale updates, the loss leaves its level within a dozen steps, by far more than it scatters.
// A single bad batch does not count. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>

#include "core/preserve/trend.h"

namespace deft::preserve {

class LossWatch {
 public:
  void take(double loss, const Trend& trend);
  [[nodiscard]] bool risen(double target) const;
  [[nodiscard]] double newest() const;                   // the mean of the newest samples
  [[nodiscard]] double level() const { return level_; }  // the lowest average so far; infinite: not known yet
  void forget();                                         // looks for a new level from now on

 private:
  static constexpr std::size_t kNewest = 3;     // samples that are compared with the level
  static constexpr std::uint64_t kSettled = 8;  // samples before an average becomes a level
  static constexpr double kClearly = 5;         // a rise is at least so many standard errors,
  static constexpr double kWorse = 1.1;         // and ends at least so many times as far from the target

  std::array<double, kNewest> losses_{};
  std::uint64_t count_ = 0;  // samples since forget()
  double level_ = unknown();
  double deviation_ = 0;  // the deviation of one sample when the level was found

  static double unknown();
};

}  // namespace deft::preserve
