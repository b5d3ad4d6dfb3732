#include "core/preserve/loss_watch.h"

#include <algorithm>
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

void LossWatch::begin_at(double level, double deviation) {
  count_ = 0;
  level_ = level;
  deviation_ = deviation;
}

WarmupDetector::Sample WarmupDetector::mean(std::uint64_t first) const {
  Sample sum;
  for (std::uint64_t i = first; i < first + kHalf; ++i) {
    sum.step += newest_[i % newest_.size()].step;
    sum.loss += newest_[i % newest_.size()].loss;
  }
  return {sum.step / kHalf, sum.loss / kHalf};
}

void WarmupDetector::take(std::uint64_t step, double loss, double target) {
  if (over_) return;
  if (count_ == 0) first_loss_ = loss;
  newest_[count_++ % newest_.size()] = {static_cast<double>(step), loss};
  over_ = count_ >= kLatest;
  if (count_ < newest_.size()) return;
  const Sample before = mean(count_ - newest_.size()), now = mean(count_ - kHalf);
  const double slope = (before.loss - now.loss) / std::max(1.0, now.step - before.step);
  steepest_ = std::max(steepest_, slope);
  if (now.loss - target < kFallen * (first_loss_ - target) && slope < kSlower * steepest_) over_ = true;
}

}  // namespace deft::preserve
