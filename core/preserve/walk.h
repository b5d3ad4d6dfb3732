// Training as a Gaussian walk with rebound: where the loss is expected to be after some updates.
//
// One update moves the state s (the loss) by a random step towards the target S*, and rebounds from it:
//   s' = S* + |s - S* - eta * delta|,   delta ~ N(mu, sigma^2 / B)
// so s' - S* is a folded normal variable. With m = s - S* - eta * mu and v = eta * sigma / sqrt(B) its mean is
//   m * (Phi(m/v) - Phi(-m/v)) + v * sqrt(2/pi) * exp(-m^2 / (2 v^2)).
// (DeFT prints the random step in the place of its mean; it has no value there.)
// Over several updates the whole distribution is carried on: as a normal one while no walk can have rebounded, and on a
// grid from then on.
#pragma once

#include <vector>

namespace deft::preserve {

// How an update of k merged steps is scaled: their sum (k times the step of one) or their mean.
enum class MergeScale { kSum, kMean };

struct Walk {
  double state = 0;               // s: the loss now
  double target = 0;              // S*: the lowest that it can reach
  double learning_rate = 0;       // eta
  double gradient_mean = 0;       // mu: what one update gains per unit of eta; by a first-order step |G|^2
  double gradient_deviation = 0;  // sigma: standard deviation of that gain for a batch of one
  double batch = 1;               // B: of one step, over all workers
  double gradient_norm = 0;       // |G|^2 where it is more than mu: a gradient that swings gains little
};

// Where walks that began at `walk.state` are after some updates.
class Position {
 public:
  explicit Position(const Walk& walk) : walk_(walk), mean_(walk.state - walk.target) {}

  // One update that merges `steps` steps. `noise` multiplies its variance (1: as the gradients give it).
  void update(unsigned steps, MergeScale merging, double noise = 1);
  [[nodiscard]] double mean() const { return walk_.target + mean_; }  // the expected loss

 private:
  void rebound_from_normal(double centre, double deviation);
  void rebound_from_grid(double drift, double deviation);
  void measure();

  Walk walk_;
  double mean_;  // above the target
  double variance_ = 0;
  // The distribution above the target, in cells of equal width; empty: it is normal.
  std::vector<double> mass_;
  double low_ = 0;
  double cell_ = 0;
};

}  // namespace deft::preserve
