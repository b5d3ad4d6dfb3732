// What one pass over gradients finds out.
#include "core/compress/measures.h"

#include <gtest/gtest.h>

#include <bit>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 15, 16, 17, 255, 256, 257, 600};

TEST(Measures, AllFiniteFindsOneValueAtAnyPlace) {
  for (const std::size_t count : kSizes) {
    Floats values = make_values(Data::kHuge, count, count);
    EXPECT_TRUE(all_finite(values));
    for (std::size_t i = 0; i < count; ++i) {
      const float finite = values[i];
      for (const float wrong : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
        values[i] = wrong;
        ASSERT_FALSE(all_finite(values)) << wrong << " at " << i << " of " << count;
        for (const KernelSet& set : kernel_sets())
          ASSERT_GE(set.kernels->select.largest(values.data(), count),
                    std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity()))
              << set.name;
      }
      values[i] = finite;
    }
  }
}

TEST(Measures, SquaresAddUpToTheSameBitsInEveryKernelSet) {
  for (const Data data : kFiniteData) {
    for (const std::size_t count : kSizes) {
      const Floats values = make_values(data, count, 1), added = make_values(data, count, 2);
      double sum = 0, sum_of_both = 0;
      for (std::size_t i = 0; i < count; ++i) {
        sum += std::pow(static_cast<double>(values[i]), 2);
        sum_of_both += std::pow(static_cast<double>(values[i] + added[i]), 2);
      }
      EXPECT_NEAR(sum_of_squares(values), sum, sum * 1e-12);
      if (std::isfinite(sum_of_both)) {  // sums of huge values are not
        EXPECT_NEAR(sum_of_squares(values, added), sum_of_both, sum_of_both * 1e-12);
      }
      for (const KernelSet& set : kernel_sets()) {
        EXPECT_EQ(set.kernels->measure.squares(values.data(), count), sum_of_squares(values)) << set.name;
        EXPECT_EQ(set.kernels->measure.squares_of_sums(values.data(), added.data(), count),
                  sum_of_squares(values, added))
            << set.name;
      }
    }
  }
}

TEST(Measures, SquaresOfWhatIsNotFiniteAreNotFinite) {
  Floats values(300, 1.0F);
  for (const std::size_t place : {0U, 17U, 299U}) {
    values[place] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(sum_of_squares(values)));
    EXPECT_FALSE(std::isfinite(sum_of_squares(Floats(300, 1.0F), values)));
    values[place] = 1.0F;
  }
}

}  // namespace
}  // namespace deft::compress
