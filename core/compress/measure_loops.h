// The loops that add up squares. Included by loops.h alone, once a kernel set.
#pragma once

#include "core/compress/lanes.h"

namespace deft::compress {
namespace {

// The sum of value(i)^2, in the order that all kernel sets keep: 16 lanes, then those by halves.
template <typename Value>
double add_squares(std::size_t count, Value value) {
  double lanes[kLanes] = {};
  std::size_t row = 0;
  for (; row + kLanes <= count; row += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto term = static_cast<double>(value(row + lane));
      lanes[lane] += term * term;
    }
  for (std::size_t lane = 0; row + lane < count; ++lane) {
    const auto term = static_cast<double>(value(row + lane));
    lanes[lane] += term * term;
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

double squares(const float* values, std::size_t count) {
  return add_squares(count, [values](std::size_t i) { return values[i]; });
}

double squares_of_sums(const float* values, const float* added, std::size_t count) {
  return add_squares(count, [values, added](std::size_t i) { return values[i] + added[i]; });
}

}  // namespace
}  // namespace deft::compress
