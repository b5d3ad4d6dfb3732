// Has the loss risen? The evidence against late updates that no model of training can talk away.
//
//   watch.take(loss, trend);   // each sample, once the trend has it
//   watch.risen(target)        // the newest samples lie clearly above the lowest level so far
//
// Late updates that a training does not bear show within a dozen steps: the loss leaves its level by far more than it
// scatters. A single bad batch does not count.
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
  [[nodiscard]] double level() const { return level_; }  // infinite: not known yet
  void forget();                                         // the level begins anew

 private:
  static constexpr std::size_t kNewest = 3;     // samples that are compared with the level
  static constexpr std::uint64_t kSettled = 8;  // samples before an average is taken for a level
  static constexpr double kClearly = 5;         // standard errors,
  static constexpr double kWorse = 1.1;         // and at least so many times as far from the target

  std::array<double, kNewest> losses_{};
  std::uint64_t count_ = 0;  // since the level began anew
  double level_ = unknown();
  double deviation_ = 0;  // of one sample, when the level was found

  static double unknown();
};

}  // namespace deft::preserve
