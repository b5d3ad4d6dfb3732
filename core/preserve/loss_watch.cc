#include "core/preserve/loss_watch.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace deft::preserve {

double LossWatch::unknown() { return std::numeric_limits<double>::infinity(); }

void LossWatch::take(double loss, const Trend& trend) {
  losses_[count_++ % kNewest] = loss;
  if (trend.samples() < kSettled || trend.loss().mean >= level_) return;
  level_ = trend.loss().mean;
  deviation_ = trend.loss_deviation();
}

double LossWatch::newest() const { return std::accumulate(losses_.begin(), losses_.end(), 0.0) / kNewest; }

bool LossWatch::risen(double target) const {
  if (count_ < kNewest || !std::isfinite(level_)) return false;
  const double scatter = deviation_ / std::sqrt(static_cast<double>(kNewest));
  return newest() > level_ + kClearly * scatter && newest() - target > kWorse * (level_ - target);
}

void LossWatch::forget() {
  count_ = 0;
  level_ = unknown();
}

}  // namespace deft::preserve
