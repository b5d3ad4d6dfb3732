#include "core/compress/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/mix64.h"

namespace deft::compress {
namespace {

constexpr std::size_t kLanes = 16;

// Both sums run over lanes in an order that no compiler or processor changes.
float dot(const float* __restrict a, const float* __restrict b, std::size_t count) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

void add_scaled(float* __restrict to, const float* __restrict from, float factor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// Column by column: what a factor looks like for loops over its rows.
std::vector<float> transposed(std::span<const float> factor, std::size_t rank) {
  const std::size_t rows = factor.size() / rank;
  std::vector<float> columns(factor.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t k = 0; k < rank; ++k) columns[k * rows + row] = factor[row * rank + k];
  return columns;
}

void transpose_back(const std::vector<float>& columns, std::size_t rank, std::span<float> factor) {
  const std::size_t rows = factor.size() / rank;
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t k = 0; k < rank; ++k) factor[row * rank + k] = columns[k * rows + row];
}

bool is_zero(std::span<const float> factor, std::size_t rank, std::size_t column) {
  for (std::size_t at = column; at < factor.size(); at += rank)
    if (factor[at] != 0) return false;
  return true;
}

}  // namespace

MatrixShape matrix_of(std::span<const std::uint64_t> dimensions, std::size_t rank) {
  std::size_t elements = 1;
  for (const std::uint64_t extent : dimensions) elements *= extent;
  MatrixShape best{elements, 1, rank};
  std::size_t rows = 1;
  for (const std::uint64_t extent : dimensions) {
    rows *= extent;
    const MatrixShape shape{rows, elements / rows, rank};
    if (shape.p_elements() + shape.q_elements() < best.p_elements() + best.q_elements()) best = shape;
  }
  return best;
}

// The sum of four uniform numbers is near enough to a normal one, and needs no function that libraries round differently.
void start_factor(std::uint64_t seed, std::span<float> factor) {
  for (std::size_t i = 0; i < factor.size(); ++i) {
    const std::uint64_t drawn = mix64(seed ^ mix64(i + 0x9E3779B97F4A7C15U));
    std::int32_t sum = 0;
    for (int shift = 0; shift < 64; shift += 16) sum += static_cast<std::int32_t>((drawn >> shift) & 0xFFFFU);
    factor[i] = static_cast<float>(sum - 2 * 0xFFFF) * 0x1p-15F;
  }
}

void project(const MatrixShape& shape, std::span<const float> m, std::span<const float> q, std::span<float> p) {
  const std::vector<float> columns = transposed(q, shape.rank);
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      p[row * shape.rank + k] = dot(&m[row * shape.columns], &columns[k * shape.columns], shape.columns);
}

void back_project(const MatrixShape& shape, std::span<const float> m, std::span<const float> p, std::span<float> q) {
  std::vector<float> columns(shape.q_elements());
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_scaled(&columns[k * shape.columns], &m[row * shape.columns], p[row * shape.rank + k], shape.columns);
  transpose_back(columns, shape.rank, q);
}

void orthogonalise(std::span<float> factor, std::size_t rank) {
  std::vector<float> columns = transposed(factor, rank);
  const std::size_t rows = factor.size() / rank;
  for (std::size_t k = 0; k < rank; ++k) {
    float* const column = &columns[k * rows];
    const float before = std::sqrt(dot(column, column, rows));
    for (int pass = 0; pass < 2; ++pass)  // once leaves what the first subtraction rounded
      for (std::size_t other = 0; other < k; ++other) {
        const float* const basis = &columns[other * rows];
        add_scaled(column, basis, -dot(column, basis, rows), rows);
      }
    const float length = std::sqrt(dot(column, column, rows));
    // The rest of a dependent column is rounding, which must not become a direction.
    const bool dependent = length <= before * 1e-5F || length < 1e-18F;
    const float inverse = dependent ? 0.0F : 1 / length;
    for (std::size_t row = 0; row < rows; ++row) column[row] *= inverse;
  }
  transpose_back(columns, rank, factor);
}

void make_basis(std::span<float> factor, std::size_t rank, std::uint64_t seed) {
  orthogonalise(factor, rank);
  std::vector<float> drawn;
  for (std::size_t k = 0; k < rank; ++k) {
    if (!is_zero(factor, rank, k)) continue;
    drawn.resize(factor.size());
    start_factor(seed, drawn);
    for (std::size_t at = k; at < factor.size(); at += rank) factor[at] = drawn[at];
  }
  if (!drawn.empty()) orthogonalise(factor, rank);
}

void reconstruct(const MatrixShape& shape, std::span<const float> p, std::span<const float> q, std::span<float> m) {
  std::ranges::fill(m, 0.0F);
  const std::vector<float> columns = transposed(q, shape.rank);
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_scaled(&m[row * shape.columns], &columns[k * shape.columns], p[row * shape.rank + k], shape.columns);
}

void subtract(const MatrixShape& shape, std::span<const float> p, std::span<const float> q, std::span<float> m) {
  const std::vector<float> columns = transposed(q, shape.rank);
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < shape.rank; ++k)
      add_scaled(&m[row * shape.columns], &columns[k * shape.columns], -p[row * shape.rank + k], shape.columns);
}

bool is_usable(std::span<const float> values) {
  constexpr float kMost = 1e36F;  // kMostRank products are less than the largest float
  return std::ranges::all_of(values, [](float value) { return std::abs(value) <= kMost; });
}

}  // namespace deft::compress
