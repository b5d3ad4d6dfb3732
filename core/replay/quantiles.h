// Quantiles of measured values: replay and explain predict the usual step, so they count medians.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace deft::replay {

// 0 if there are no values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(std::lround(share * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// Each value comes with its weight, which is positive. 0 if there are no values.
inline double weighted_median(std::vector<std::pair<double, double>> values) {
  std::ranges::sort(values);
  double left = 0;
  for (const auto& [value, weight] : values) left += weight / 2;
  for (const auto& [value, weight] : values)
    if ((left -= weight) <= 0) return value;
  return values.empty() ? 0 : values.back().first;
}

// The relative standard deviation, from the quartiles: a pause among the values does not count.
inline double spread(const std::vector<double>& values) {
  constexpr double kQuartilesOfNormal = 1.349;  // the distance of the quartiles, in standard deviations
  const double middle = median(values);
  return middle > 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / kQuartilesOfNormal / middle : 0;
}

}  // namespace deft::replay
