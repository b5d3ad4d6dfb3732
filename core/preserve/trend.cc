#include "core/preserve/trend.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deft::preserve {

std::optional<Norms> norms_of_step(double local, double average, double workers) {
  const Norms norms{(workers * average - local) / (workers - 1), std::max(0.0, (local - average) / (workers - 1))};
  if (workers < 2 || !std::isfinite(norms.gradient) || !std::isfinite(norms.noise)) return std::nullopt;
  return norms;
}

void Trend::Average::follow(double newest, double weight) {
  const double moved = newest - mean;
  mean += weight * moved;
  variance = (1 - weight) * (variance + weight * moved * moved);
}

void Trend::take(const Norms& norms, double updates, double loss) {
  const double weight = std::max(1 / kWindow, 1.0 / static_cast<double>(++samples_));
  covariance_ = (1 - weight) * (covariance_ + weight * (updates - updates_.mean) * (loss - loss_.mean));
  gradient_.follow(norms.gradient, weight);
  noise_.follow(norms.noise, weight);
  loss_.follow(loss, weight);
  updates_.follow(updates, weight);
  squares_ = (1 - weight) * (1 - weight) * squares_ + weight * weight;
}

Value Trend::value(const Average& average) const {
  if (samples_ < 2) return {average.mean, std::numeric_limits<double>::infinity()};
  return {average.mean, std::sqrt(average.variance * squares_ / (1 - squares_))};
}

double Trend::loss_deviation() const {
  if (samples_ < kLeast || updates_.variance <= 0) return std::numeric_limits<double>::infinity();
  const double explained = covariance_ * covariance_ / updates_.variance;
  return std::sqrt(std::max(0.0, loss_.variance - explained) / (1 - 2 * squares_));
}

Value Trend::fall() const {
  if (samples_ < kLeast || updates_.variance <= 0) return {0, std::numeric_limits<double>::infinity()};
  return {-covariance_ / updates_.variance, loss_deviation() * std::sqrt(squares_ / updates_.variance)};
}

}  // namespace deft::preserve
