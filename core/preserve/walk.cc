#include "core/preserve/walk.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deft::preserve {
namespace {

constexpr int kCells = 96;
constexpr double kReach = 6;      // standard deviations that the grid covers on each side
constexpr double kNoRebound = 8;  // standard deviations above the target from which no walk gets there

double cumulative(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// Mean and variance of |X| for a normal X.
struct Folded {
  double mean;
  double variance;
};
Folded fold(double centre, double deviation) {
  if (deviation <= 0) return {std::abs(centre), 0};
  const double a = centre / deviation;
  const double mean =
      centre * std::erf(a / std::numbers::sqrt2) + deviation * std::sqrt(2 / std::numbers::pi) * std::exp(-a * a / 2);
  return {mean, std::max(0.0, centre * centre + deviation * deviation - mean * mean)};
}

// Spreads `mass`, at `centre` before a normal step and its rebound, over cells that begin at `low`.
void spread(double mass, double centre, double deviation, double low, double cell, std::vector<double>& cells) {
  const auto below = [&](double x) {  // share of the walks that end in [0, x]
    return cumulative((x - centre) / deviation) - cumulative((-x - centre) / deviation);
  };
  double before = low <= 0 ? 0 : below(low);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const double now = below(low + cell * static_cast<double>(i + 1));
    cells[i] += mass * (now - before);
    before = now;
  }
}

}  // namespace

void Position::measure() {
  double total = 0;
  double first = 0;
  double second = 0;
  for (std::size_t i = 0; i < mass_.size(); ++i) {
    const double x = low_ + cell_ * (static_cast<double>(i) + 0.5);
    total += mass_[i];
    first += mass_[i] * x;
    second += mass_[i] * x * x;
  }
  for (auto& mass : mass_) mass /= total;  // what lies beyond the grid's reach
  mean_ = first / total;
  variance_ = std::max(0.0, second / total - mean_ * mean_);
}

void Position::rebound_from_normal(double centre, double deviation) {
  const Folded folded = fold(centre, deviation);
  const double reach = kReach * std::sqrt(folded.variance);
  low_ = std::max(0.0, folded.mean - reach);
  cell_ = (folded.mean + reach - low_) / kCells;
  mass_.assign(kCells, 0);
  spread(1, centre, deviation, low_, cell_, mass_);
  measure();
  mean_ = folded.mean;  // exact, where the grid only comes close
  variance_ = folded.variance;
}

void Position::rebound_from_grid(double drift, double deviation) {
  const double centre = mean_ - drift;
  const double reach = kReach * std::sqrt(variance_ + deviation * deviation);
  const double low = std::max(0.0, std::abs(centre) - reach);
  const double cell = (std::abs(centre) + reach - low) / kCells;
  std::vector<double> next(kCells, 0);
  double mean = 0;
  for (std::size_t i = 0; i < mass_.size(); ++i) {
    if (mass_[i] < 1e-15) continue;
    const double from = low_ + cell_ * (static_cast<double>(i) + 0.5) - drift;
    spread(mass_[i], from, deviation, low, cell, next);
    mean += mass_[i] * fold(from, deviation).mean;
  }
  mass_ = std::move(next);
  low_ = low;
  cell_ = cell;
  measure();
  mean_ = mean;
}

void Position::update(unsigned steps, MergeScale merging, double noise) {
  const double scale = merging == MergeScale::kSum ? walk_.learning_rate * steps : walk_.learning_rate;
  const double drift = scale * walk_.gradient_mean;
  const double own = scale * walk_.gradient_deviation * std::sqrt(noise / (walk_.batch * steps));
  if (!mass_.empty()) return rebound_from_grid(drift, std::max(own, 1e-3 * cell_));
  const double centre = mean_ - drift;
  const double deviation = std::sqrt(variance_ + own * own);
  if (deviation > 0 && centre < kNoRebound * deviation) return rebound_from_normal(centre, deviation);
  mean_ = std::abs(centre);
  variance_ = deviation * deviation;
}

}  // namespace deft::preserve
