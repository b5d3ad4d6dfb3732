// Training as a Gaussian walk with rebound, which gives the expected loss after some updates.
//
//   Position position(walk);
//   position.update(2, MergeScale::kSum);   // an update that merges two steps
//   position.mean()                         // the expected loss
//
// One update moves the state s (the loss) by a random step towards the target S*, and rebounds from it:
//   s' = S* + |s - S* - eta * delta|,   delta ~ N(mu, sigma^2 / B)
// So s' - S* is a folded normal variable. With m = s - S* - eta * mu and v = eta * sigma / sqrt(B) its mean is
//   m * (Phi(m/v) - Phi(-m/v)) + v * sqrt(2/pi) * exp(-m^2 / (2 v^2)).
// (The DeFT paper prints the random step instead of its mean; a random step has no value there.)
// Over several updates the whole distribution is followed: as a normal distribution while no walk can have rebounded, and on
// a grid after that. Not thread-safe.
#pragma once

#include <vector>

namespace deft::preserve {

// How an update of k merged steps is scaled: by the sum of their gradients (k times one step), or by the mean.
enum class MergeScale { kSum, kMean };

// The statistics of a training.
struct Walk {
  double state = 0;               // s: the loss now
  double target = 0;              // S*: the lowest loss that the training can reach
  double learning_rate = 0;       // eta
  double gradient_mean = 0;       // mu: the gain of one update per unit of eta; |G|^2 for a first-order step
  double gradient_deviation = 0;  // sigma: the standard deviation of that gain for a batch of one
  double batch = 1;               // B: the batch of one step over all workers
  double gradient_norm = 0;       // |G|^2 if it is more than mu, because a gradient that swings gains little
};

// The distribution of the loss after some updates, beginning at `walk.state`.
class Position {
 public:
  explicit Position(const Walk& walk) : walk_(walk), mean_(walk.state - walk.target) {}

  // Makes one update that merges `steps` steps. `noise` multiplies its variance (1: the variance of the gradients).
  void update(unsigned steps, MergeScale merging, double noise = 1);
  [[nodiscard]] double mean() const { return walk_.target + mean_; }  // the expected loss

 private:
  void rebound_from_normal(double centre, double deviation);
  void rebound_from_grid(double drift, double deviation);
  void measure();

  Walk walk_;
  double mean_;  // above the target
  double variance_ = 0;
  // The distribution above the target, in cells of equal width. Empty while it is normal.
  std::vector<double> mass_;
  double low_ = 0;
  double cell_ = 0;
};

}  // namespace deft::preserve
