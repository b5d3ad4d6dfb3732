// Is the first fast fall of the loss behind? Until then late updates are no risk to take: gradients are small on the
// first plateau, which tells nothing, and largest in the fall, where what is late destroys most.
//
//   WarmupDetector onset;
//   onset.take(step, loss, target);   // each sample
//   onset.over()                      // the loss has fallen by a tenth, and now falls half as fast as it did, or slower
//
// A loss that hardly falls (a training that was resumed) is waited for no longer than kLatest samples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deft::preserve {

class WarmupDetector {
 public:
  static constexpr std::uint64_t kLatest = 128;  // samples

  void take(std::uint64_t step, double loss, double target);
  [[nodiscard]] bool over() const { return over_; }  // for ever, once it is

 private:
  static constexpr std::size_t kHalf = 3;  // samples; the slope is that between the last two times so many
  static constexpr double kFallen = 0.9;   // of the first loss, from its target
  static constexpr double kSlower = 0.5;   // of the steepest slope
  struct Sample {
    double step = 0, loss = 0;
  };
  [[nodiscard]] Sample mean(std::uint64_t first) const;  // of kHalf samples

  std::array<Sample, 2 * kHalf> newest_{};  // a ring
  std::uint64_t count_ = 0;
  double first_loss_ = 0;
  double steepest_ = 0;  // what a step took off the loss
  bool over_ = false;
};

}  // namespace deft::preserve
