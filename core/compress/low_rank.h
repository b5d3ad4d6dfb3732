// The arithmetic of low-rank compression: a matrix is sent as the product of two thin factors.
//
// A gradient of `rows` x `columns` values, row by row, is approximated by p q^T, where p is rows x rank and q columns x rank,
// row by row, too. Both methods warm-start: they begin with the factor of the generation before, which
// start_factor makes for the first one, the same on all nodes. `m` is the gradient plus the residual.
//
// PowerSGD (Vogels et al., 2019), two all-reduces a generation:
//   project(m, q, p); all-reduce p; orthogonalise(p); back_project(m, p, q); all-reduce q; the sum is p q^T
// ACP-SGD (Zhang et al., 2023), one of them, in turn:
//   even: orthogonalise(q); project(m, q, p); all-reduce p         odd: orthogonalise(p); back_project(m, p, q); all-reduce q
// Either way each node keeps in its residual what its own factor leaves out: m - p q^T with p or q from before its last
// all-reduce. Sums are linear, so nothing is lost: sum of m = sum that was applied + sum of residuals.
//
// "orthogonalise" above is make_basis: a factor that lost a direction, because a gradient was 0, gets a random one in its place.
//
// Pure functions, any thread. The same inputs give the same bits on every processor, so factors that were equal stay equal.
// NaN and infinity pass through; the caller looks for them (is_usable).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deft::compress {

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;  // 1 to kMostRank

  bool operator==(const MatrixShape&) const = default;
  [[nodiscard]] std::size_t elements() const { return rows * columns; }
  [[nodiscard]] std::size_t p_elements() const { return rows * rank; }
  [[nodiscard]] std::size_t q_elements() const { return columns * rank; }
  // True if the factors, as float32, are smaller than the matrix with elements of so many bytes. If not, send it as it is.
  [[nodiscard]] bool saves(std::size_t element_bytes = sizeof(float)) const {
    return (p_elements() + q_elements()) * sizeof(float) < elements() * element_bytes;
  }
};

constexpr std::size_t kMostRank = 32;

// A tensor as a matrix: its values stay where they are, and the cut between rows and columns lies between the two dimensions
// where the factors are smallest. So a convolution kernel of out x in x 3 x 3 is out x rest.
MatrixShape matrix_of(std::span<const std::uint64_t> dimensions, std::size_t rank);

// Random numbers around 0 that depend on `seed` alone, for a first q.
void start_factor(std::uint64_t seed, std::span<float> factor);

// p = m q and q = m^T p.
void project(const MatrixShape& shape, std::span<const float> m, std::span<const float> q, std::span<float> p);
void back_project(const MatrixShape& shape, std::span<const float> m, std::span<const float> p, std::span<float> q);

// Makes the columns of a factor (p or q: `rank` columns) orthonormal, in place, by Gram-Schmidt, twice. A column that depends
// on those before it becomes 0.
void orthogonalise(std::span<float> factor, std::size_t rank);

// The same, but a column that would become 0 becomes a random direction, which depends on `seed` alone. Without this, a gradient of
// zeros would leave a factor of zeros, and no later generation could send anything.
void make_basis(std::span<float> factor, std::size_t rank, std::uint64_t seed);

// m = p q^T, and m -= p q^T.
void reconstruct(const MatrixShape& shape, std::span<const float> p, std::span<const float> q, std::span<float> m);
void subtract(const MatrixShape& shape, std::span<const float> p, std::span<const float> q, std::span<float> m);

// True if all values are finite, and so small that no value of the product with a basis overflows.
bool is_usable(std::span<const float> values);

}  // namespace deft::compress
