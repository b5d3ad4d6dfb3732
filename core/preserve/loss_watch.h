// Two detectors that watch the loss of a training: LossWatch sees that it rises, and WarmupDetector sees the end of its first fast
// fall. Both take samples in order, do no I/O, and are not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/preserve/trend.h"

namespace deft::preserve {

// Detects that the loss has risen, which is evidence against stale updates whatever the model of training says.
//
//   watch.take(loss, trend);   // each sample, after trend.take()
//   watch.risen(target)        // true: the newest samples lie clearly above the lowest level so far
//
// If a training does not tolerate stale updates, the loss leaves its level within a dozen steps, by far more than it scatters.
// A single bad batch does not count.
class LossWatch {
 public:
  void take(double loss, const Trend& trend);
  [[nodiscard]] bool risen(double target) const;
  [[nodiscard]] double newest() const;                   // the mean of the newest samples
  [[nodiscard]] double level() const { return level_; }  // the lowest average so far; infinite: not known yet
  [[nodiscard]] double deviation() const { return deviation_; }
  void forget();  // looks for a new level from now on
  // The level is known. `trend` must begin anew with it, because its average must not reach back to before.
  void begin_at(double level, double deviation);

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

// Detects the end of the first fast fall of the loss. Before that, stale updates are too risky: gradients on the first plateau
// are small and say nothing, and gradients are largest during the fall, when stale updates destroy most.
//
//   WarmupDetector warmup;
//   warmup.take(step, loss, target);   // each sample
//   warmup.over()                      // the loss has fallen by a tenth, and now falls at most half as fast as before
//
// If the loss hardly falls, as in a training that was resumed, the warm-up ends after kLatest samples.
class WarmupDetector {
 public:
  static constexpr std::uint64_t kLatest = 128;  // samples

  void take(std::uint64_t step, double loss, double target);
  [[nodiscard]] bool over() const { return over_; }  // stays true

 private:
  static constexpr std::size_t kHalf = 3;  // the slope lies between the means of the last two times so many samples
  static constexpr double kFallen = 0.9;   // the loss must fall to this share of its first distance from the target
  static constexpr double kSlower = 0.5;   // the slope must fall to this share of the steepest one
  struct Sample {
    double step = 0, loss = 0;
  };
  [[nodiscard]] Sample mean(std::uint64_t first) const;  // the mean of kHalf samples

  std::array<Sample, 2 * kHalf> newest_{};  // a ring
  std::uint64_t count_ = 0;
  double first_loss_ = 0;
  double steepest_ = 0;  // the largest fall of the loss in a step
  bool over_ = false;
};

}  // namespace deft::preserve
