// What one pass over gradients finds out, as fast as memory allows.
//
//   if (!all_finite(sums)) ...
//   const double given = sum_of_squares(gradients, residuals);
//
// Pure functions, any thread. The same values give the same bits on every processor.
#pragma once

#include <span>

namespace deft::compress {

// False if a value is NaN or infinite.
[[nodiscard]] bool all_finite(std::span<const float> values);

// Not finite if a value is not.
[[nodiscard]] double sum_of_squares(std::span<const float> values);
// Of the sums values[i] + added[i], which are rounded to float32. Both have the same size.
[[nodiscard]] double sum_of_squares(std::span<const float> values, std::span<const float> added);

}  // namespace deft::compress
