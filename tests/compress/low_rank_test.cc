// Low-rank compression: the arithmetic, and the two methods that are made of it.
#include "core/compress/low_rank.h"

#include <gtest/gtest.h>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr MatrixShape kShape{.rows = 40, .columns = 57, .rank = 3};

Floats started(std::uint64_t seed, std::size_t count) {
  Floats factor(count);
  start_factor(seed, factor);
  return factor;
}

// A matrix whose singular values are `values`.
Floats matrix_with(const MatrixShape& shape, const std::vector<float>& values, std::uint64_t seed) {
  Floats left = started(seed, shape.rows * values.size()), right = started(seed + 1, shape.columns * values.size());
  orthogonalise(left, values.size());
  orthogonalise(right, values.size());
  for (std::size_t row = 0; row < shape.rows; ++row)
    for (std::size_t k = 0; k < values.size(); ++k) left[row * values.size() + k] *= values[k];
  Floats m(shape.elements());
  reconstruct({shape.rows, shape.columns, values.size()}, left, right, m);
  return m;
}

TEST(LowRank, ProductsAreThoseOfMatrices) {
  const Floats m = normal_values(kShape.elements(), 1), q = normal_values(kShape.q_elements(), 2),
               p = normal_values(kShape.p_elements(), 3);
  Floats projected(kShape.p_elements()), back(kShape.q_elements()), product(kShape.elements()), left = m;
  project(kShape, m, q, projected);
  back_project(kShape, m, p, back);
  reconstruct(kShape, p, q, product);
  subtract(kShape, p, q, left);
  for (std::size_t row = 0; row < kShape.rows; ++row)
    for (std::size_t k = 0; k < kShape.rank; ++k) {
      double sum = 0;
      for (std::size_t column = 0; column < kShape.columns; ++column)
        sum += static_cast<double>(m[row * kShape.columns + column]) * q[column * kShape.rank + k];
      EXPECT_NEAR(projected[row * kShape.rank + k], sum, 1e-7);
    }
  for (std::size_t column = 0; column < kShape.columns; ++column)
    for (std::size_t k = 0; k < kShape.rank; ++k) {
      double sum = 0;
      for (std::size_t row = 0; row < kShape.rows; ++row)
        sum += static_cast<double>(m[row * kShape.columns + column]) * p[row * kShape.rank + k];
      EXPECT_NEAR(back[column * kShape.rank + k], sum, 1e-7);
    }
  for (std::size_t row = 0; row < kShape.rows; ++row)
    for (std::size_t column = 0; column < kShape.columns; ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < kShape.rank; ++k)
        sum += static_cast<double>(p[row * kShape.rank + k]) * q[column * kShape.rank + k];
      EXPECT_NEAR(product[row * kShape.columns + column], sum, 1e-8);
      EXPECT_NEAR(left[row * kShape.columns + column], m[row * kShape.columns + column] - sum, 1e-8);
    }
}

TEST(LowRank, ColumnsBecomeOrthonormal) {
  for (const std::size_t rows : {4U, 17U, 1000U}) {
    Floats factor = started(rows, rows * 4);
    for (std::size_t row = 0; row < rows; ++row)
      factor[row * 4 + 1] = factor[row * 4] * (1 + 1e-3F * static_cast<float>(row % 3));
    orthogonalise(factor, 4);
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t b = 0; b < 4; ++b) {
        double sum = 0;
        for (std::size_t row = 0; row < rows; ++row)
          sum += static_cast<double>(factor[row * 4 + a]) * factor[row * 4 + b];
        EXPECT_NEAR(sum, a == b ? 1 : 0, 1e-5) << rows << " " << a << " " << b;
      }
  }
}

TEST(LowRank, ADependentColumnBecomesZero) {
  Floats factor = started(1, 300);
  for (std::size_t row = 0; row < 100; ++row) factor[row * 3 + 2] = 2 * factor[row * 3] - factor[row * 3 + 1];
  orthogonalise(factor, 3);
  for (std::size_t row = 0; row < 100; ++row) EXPECT_EQ(factor[row * 3 + 2], 0.0F);
  Floats zeros(300);
  orthogonalise(zeros, 3);
  EXPECT_EQ(zeros, Floats(300));
}

TEST(LowRank, TheFirstFactorIsTheSameOnAllNodes) {
  EXPECT_EQ(started(7, 100), started(7, 100));
  EXPECT_NE(started(7, 100), started(8, 100));
  EXPECT_NEAR(squared(started(7, 30'000)) / 30'000, 4.0 / 3, 0.05);
}

TEST(LowRank, ATensorIsCutWhereTheFactorsAreSmallest) {
  using Dimensions = std::vector<std::uint64_t>;
  const auto sides = [](const Dimensions& dimensions) {
    const MatrixShape shape = matrix_of(dimensions, 4);
    EXPECT_EQ(shape.rank, 4U);
    return std::pair(shape.rows, shape.columns);
  };
  EXPECT_EQ(sides({30, 50}), std::pair(std::size_t{30}, std::size_t{50}));
  EXPECT_EQ(sides({64, 32, 3, 3}), std::pair(std::size_t{64}, std::size_t{288})) << "out x in x 3 x 3";
  EXPECT_EQ(sides({3, 3, 64, 128}), std::pair(std::size_t{576}, std::size_t{128})) << "3 x 3 x in x out";
  EXPECT_EQ(sides({500}), std::pair(std::size_t{500}, std::size_t{1}));
  EXPECT_FALSE(matrix_of(Dimensions{500}, 1).saves());
}

TEST(LowRank, ABasisHasARandomDirectionInPlaceOfOneThatIsLost) {
  Floats factor = started(1, 300), again = factor;
  for (std::size_t row = 0; row < 100; ++row) factor[row * 3 + 1] = factor[row * 3 + 2] = 0;
  orthogonalise(again, 3);
  make_basis(factor, 3, 5);
  Floats product(9);
  for (std::size_t a = 0; a < 3; ++a)
    for (std::size_t b = 0; b < 3; ++b)
      for (std::size_t row = 0; row < 100; ++row) product[a * 3 + b] += factor[row * 3 + a] * factor[row * 3 + b];
  for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(product[i], i % 4 == 0 ? 1 : 0, 1e-5);
  for (std::size_t row = 0; row < 100; ++row) EXPECT_NEAR(factor[row * 3], again[row * 3], 1e-6) << "it is kept";
  Floats huge(300, 1e30F);
  make_basis(huge, 3, 5);
  EXPECT_TRUE(is_usable(huge)) << "whose squares overflow";
}

TEST(LowRank, NaNIsSeen) {
  Floats values(10, 1.0F);
  EXPECT_TRUE(is_usable(values));
  values[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(is_usable(values));
  values[9] = 1e37F;
  EXPECT_FALSE(is_usable(values)) << "a product may overflow";
}

// Nodes in one process. Each method gives what is applied, the same on all nodes.
class Nodes {
 public:
  Nodes(std::size_t count, const MatrixShape& shape) : shape_(shape), residuals_(count, Floats(shape.elements())) {
    q_ = started(1, shape.q_elements());
    p_ = Floats(shape.p_elements());
  }

  Floats power_sgd(const std::vector<Floats>& gradients) {
    add(gradients);
    p_ = all_reduce(shape_.p_elements(), [&](const Floats& m, Floats& own) { project(shape_, m, q_, own); });
    orthogonalise(p_, shape_.rank);
    std::vector<Floats> own(residuals_.size(), Floats(shape_.q_elements()));
    for (std::size_t n = 0; n < own.size(); ++n) back_project(shape_, residuals_[n], p_, own[n]);
    q_ = sum_of(own);
    for (std::size_t n = 0; n < own.size(); ++n) subtract(shape_, p_, own[n], residuals_[n]);
    return product();
  }

  Floats acp_sgd(const std::vector<Floats>& gradients, bool even) {
    add(gradients);
    Floats& fixed = even ? q_ : p_;
    Floats& moving = even ? p_ : q_;
    orthogonalise(fixed, shape_.rank);
    std::vector<Floats> own(residuals_.size(), Floats(moving.size()));
    for (std::size_t n = 0; n < own.size(); ++n) {
      even ? project(shape_, residuals_[n], q_, own[n]) : back_project(shape_, residuals_[n], p_, own[n]);
      even ? subtract(shape_, own[n], q_, residuals_[n]) : subtract(shape_, p_, own[n], residuals_[n]);
    }
    moving = sum_of(own);
    return product();
  }

  [[nodiscard]] const std::vector<Floats>& residuals() const { return residuals_; }

 private:
  void add(const std::vector<Floats>& gradients) {
    for (std::size_t n = 0; n < gradients.size(); ++n)
      for (std::size_t i = 0; i < gradients[n].size(); ++i) residuals_[n][i] += gradients[n][i];
  }
  template <typename Own>
  Floats all_reduce(std::size_t count, Own own_of) {
    std::vector<Floats> own(residuals_.size(), Floats(count));
    for (std::size_t n = 0; n < own.size(); ++n) own_of(residuals_[n], own[n]);
    return sum_of(own);
  }
  static Floats sum_of(const std::vector<Floats>& own) {
    Floats sum(own[0].size());
    for (const Floats& one : own)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    return sum;
  }
  Floats product() {
    Floats out(shape_.elements());
    reconstruct(shape_, p_, q_, out);
    return out;
  }

  MatrixShape shape_;
  std::vector<Floats> residuals_;
  Floats p_, q_;
};

class LowRankMethod : public ::testing::TestWithParam<bool> {
 protected:
  Floats step(Nodes& nodes, const std::vector<Floats>& gradients, std::uint64_t generation) {
    return GetParam() ? nodes.power_sgd(gradients) : nodes.acp_sgd(gradients, generation % 2 == 0);
  }
};
INSTANTIATE_TEST_SUITE_P(All, LowRankMethod, ::testing::Values(true, false),
                         [](const auto& test) { return test.param ? "PowerSGD" : "ACPSGD"; });

TEST_P(LowRankMethod, NothingIsLostOverManyGenerations) {
  Nodes nodes(4, kShape);
  std::vector<double> given(kShape.elements()), got(kShape.elements());
  for (std::uint64_t generation = 0; generation < 200; ++generation) {
    std::vector<Floats> gradients;
    for (std::uint64_t n = 0; n < 4; ++n) gradients.push_back(normal_values(kShape.elements(), generation * 4 + n));
    const Floats applied = step(nodes, gradients, generation);
    for (std::size_t i = 0; i < given.size(); ++i) {
      got[i] += applied[i];
      for (const Floats& gradient : gradients) given[i] += gradient[i];
    }
  }
  double most = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    double kept = 0;
    for (const Floats& residual : nodes.residuals()) kept += residual[i];
    ASSERT_NEAR(got[i] + kept, given[i], 1e-4);
    most = std::max(most, std::abs(kept));
  }
  EXPECT_LT(most, 200 * 4 * 0.01) << "the residual is not that of all gradients together";
  EXPECT_GT(squared(std::vector<float>(got.begin(), got.end())), 0);
}

// The mean of what is sent becomes the gradient, however little one generation says.
TEST_P(LowRankMethod, TheResidualStaysBounded) {
  Nodes nodes(1, kShape);
  const Floats m = matrix_with(kShape, {1, 0.5F, 0.25F, 0.12F, 0.06F}, 9);
  for (std::uint64_t generation = 0; generation < 2000; ++generation) {
    static_cast<void>(step(nodes, {m}, generation));
    ASSERT_LT(squared(nodes.residuals()[0]), 4 * squared(m)) << generation;
  }
}

TEST(LowRank, PowerSgdSendsAMatrixOfThatRankWholeAtOnce) {
  Nodes nodes(2, kShape);
  const Floats m = matrix_with(kShape, {3, 2, 1}, 5);
  for (int generation = 0; generation < 5; ++generation) {
    const Floats applied = nodes.power_sgd({m, m});
    for (std::size_t i = 0; i < m.size(); ++i) ASSERT_NEAR(applied[i], 2 * m[i], 1e-5);
    for (const float value : nodes.residuals()[0]) EXPECT_NEAR(value, 0, 1e-5);
  }
}

}  // namespace
}  // namespace deft::compress
