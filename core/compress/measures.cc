#include "core/compress/measures.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "core/compress/kernels.h"

namespace deft::compress {

bool all_finite(std::span<const float> values) {
  constexpr auto kInfinityBits = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
  return best_kernels().select.largest(values.data(), values.size()) < kInfinityBits;
}

double sum_of_squares(std::span<const float> values) {
  return best_kernels().measure.squares(values.data(), values.size());
}

double sum_of_squares(std::span<const float> values, std::span<const float> added) {
  return best_kernels().measure.squares_of_sums(values.data(), added.data(), values.size());
}

}  // namespace deft::compress
