// What samples of a training's steps tell of its gradient, its noise and its loss, and how far each can be trusted.
//
//   Trend trend;
//   trend.take(norms, updates, loss);  // a sample
//   trend.fall().low()                 // what an update takes off the loss: at least so much
//
// Of P workers m is the mean squared norm of the own gradients of a step and a the squared norm of their average. Then
// |G|^2 = (P a - m) / (P - 1) is free of noise, and (m - a) / (P - 1) = tr(Sigma) / B is the noise of the average
// (McCandlish et al., 2018, appendix A). One sample tells little: in training at the edge of stability |G|^2 scatters by
// as much as itself, because the gradient swings. So averages reach back over kWindow samples, all that there are in
// the beginning, and each comes with its standard error, from the scatter of the samples themselves.
//
// The loss is followed by a straight line over the updates made: its slope is what an update gains. |G|^2 times the
// learning rate, which it would be by a first-order step, is up to a thousand times as much where the gradient swings.
#pragma once

#include <cstdint>
#include <optional>

namespace deft::preserve {

inline constexpr double kWindow = 16;  // samples: weights fall by e over so many
inline constexpr double kErrors = 2;   // standard errors within which a value may lie

struct Norms {  // squared, of one step
  double gradient = 0;
  double noise = 0;
};
// Nothing where there are less than two workers. `local`: the mean over the workers.
std::optional<Norms> norms_of_step(double local, double average, double workers);

struct Value {
  double mean = 0;
  double error = 0;  // standard error of the mean; infinite where too little is known
  [[nodiscard]] double low() const { return mean - kErrors * error; }
  [[nodiscard]] double high() const { return mean + kErrors * error; }
};

class Trend {
 public:
  static constexpr std::uint64_t kLeast = 4;  // samples without which a slope means nothing

  // `updates`: made so far; grows.
  void take(const Norms& norms, double updates, double loss);

  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  [[nodiscard]] Value gradient() const { return value(gradient_); }
  [[nodiscard]] Value noise() const { return value(noise_); }
  [[nodiscard]] Value loss() const { return value(loss_); }
  [[nodiscard]] Value fall() const;             // of the loss, an update
  [[nodiscard]] double loss_deviation() const;  // of one sample from the line

 private:
  struct Average {
    double mean = 0, variance = 0;
    void follow(double newest, double weight);
  };
  [[nodiscard]] Value value(const Average& average) const;

  Average gradient_, noise_, loss_, updates_;
  double covariance_ = 0;  // of updates and loss
  double squares_ = 1;     // sum of the samples' squared weights: one over how many samples the averages are worth
  std::uint64_t samples_ = 0;
};

}  // namespace deft::preserve
