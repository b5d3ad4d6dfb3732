// Estimates the gradient, its noise and the loss of a training from samples of its steps, each with its error.
//
//   Trend trend;
//   trend.take(norms, updates, loss);  // a sample
//   trend.fall().low()                 // an update lowers the loss by at least so much
//
// Let m be the mean over P workers of the squared norm of their own gradients, and a the squared norm of the average gradient.
// Then |G|^2 = (P a - m) / (P - 1) is free of noise, and (m - a) / (P - 1) = tr(Sigma) / B is the noise of the average
// (McCandlish et al., 2018, appendix A). One sample says little: in training at the edge of stability |G|^2 scatters by as
// much as its own value, because the gradient swings. So averages reach back over kWindow samples, or over all samples in the
// beginning. Each has a standard error, which comes from the scatter of the samples.
//
// A straight line over the updates follows the loss; its slope is the gain of an update. |G|^2 times the learning rate, which
// is the gain of a first-order step, is up to a thousand times as much if the gradient swings.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

namespace deft::preserve {

inline constexpr double kWindow = 16;  // the weight of a sample falls by e over so many samples
inline constexpr double kErrors = 2;   // a value may lie so many standard errors from its mean

// Squared norms of one step.
struct Norms {
  double gradient = 0;
  double noise = 0;
};
// `local` is the mean over the workers of the squared norms of their gradients, `average` the squared norm of the average
// gradient. Nothing if there are fewer than two workers.
std::optional<Norms> norms_of_step(double local, double average, double workers);

// An estimate with its error.
struct Value {
  double mean = 0;
  double error = 0;  // the standard error of the mean; infinite if there are too few samples
  [[nodiscard]] double low() const { return mean - kErrors * error; }
  [[nodiscard]] double high() const { return mean + kErrors * error; }
};

class Trend {
 public:
  static constexpr std::uint64_t kLeast = 4;  // with fewer samples a slope means nothing

  // Adds a sample. `updates` counts the updates so far, and grows from sample to sample.
  void take(const Norms& norms, double updates, double loss);

  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  [[nodiscard]] Value gradient() const { return value(gradient_); }
  [[nodiscard]] Value noise() const { return value(noise_); }
  [[nodiscard]] Value loss() const { return value(loss_); }
  [[nodiscard]] Value fall() const;             // by how much an update lowers the loss
  [[nodiscard]] double loss_deviation() const;  // the deviation of one sample from the line

 private:
  struct Average {
    double mean = 0, variance = 0;
    void follow(double newest, double weight);
  };
  [[nodiscard]] Value value(const Average& average) const;

  Average gradient_, noise_, loss_, updates_;
  double covariance_ = 0;  // the covariance of updates and loss
  double squares_ =
      1;  // the sum of the squared weights; its inverse is the number of samples that the averages are worth
  std::uint64_t samples_ = 0;
};

}  // namespace deft::preserve
