// Detects the end of the first fast fall of the loss. Before that, stale updates are too risky: gradients on the first plateau
// are small and say nothing, and gradients are largest during the fall, when stale updates destroy most.
//
//   WarmupDetector warmup;
//   warmup.take(step, loss, target);   // each sample
//   warmup.over()                      // the loss has fallen by a tenth, and now falls at most half as fast as before
//
// If the loss hardly falls, as in a training that was resumed, the warm-up ends after kLatest samples. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deft::preserve {

class WarmupDetector {
 public:
  static constexpr std::uint64_t kLatest = 128;  // samples

  void take(std::uint64_t step, double loss, double target);
  [[nodiscard]] bool over() const { return over_; }  // stays true

 private:
  static constexpr std::size_t kHalf =
      3;  // the slope is taken between the mean of the last so many samples and that before
  static constexpr double kFallen = 0.9;  // the loss must fall to this share of its first distance from the target
  static constexpr double kSlower = 0.5;  // the slope must fall to this share of the steepest one
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
