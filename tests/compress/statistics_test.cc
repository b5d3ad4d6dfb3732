// Codecs that draw random numbers, and votes: what holds on the average, and what holds exactly.
#include <gtest/gtest.h>

#include <map>

#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

constexpr std::uint64_t kDraws = 4000;
constexpr std::size_t kCount = 300;  // a block and a short one

struct Moments {
  std::vector<double> mean = std::vector<double>(kCount), squares = std::vector<double>(kCount);

  void add(std::span<const float> values) {
    for (std::size_t i = 0; i < kCount; ++i) {
      mean[i] += values[i] / static_cast<double>(kDraws);
      squares[i] += static_cast<double>(values[i]) * values[i] / static_cast<double>(kDraws);
    }
  }
  // Standard error of the mean.
  [[nodiscard]] double error(std::size_t i) const {
    return std::sqrt(std::max(0.0, squares[i] - mean[i] * mean[i]) / static_cast<double>(kDraws));
  }
};

class UnbiasedTest : public ::testing::TestWithParam<std::string> {
 protected:
  const CodecPointer codec_ = codec_of(GetParam());
  const Floats values_ = normal_values(kCount, 1);

  // Means over many generations lie where chance lets them: 5.5 standard errors hold for 300 values at once.
  void expect_mean_of_values(const Moments& moments, double factor) const {
    float largest = 0;
    for (const float value : values_) largest = std::max(largest, std::abs(value));
    const double rare = 12.0 * largest / static_cast<double>(kDraws);  // of a value that is too small to be drawn often
    double worst = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double off = std::abs(moments.mean[i] - factor * values_[i]);
      EXPECT_LE(off, 5.5 * moments.error(i) + rare) << i;
      worst = std::max(worst, moments.error(i));
    }
    EXPECT_GT(worst, 0) << "nothing was random";
  }
};
INSTANTIATE_TEST_SUITE_P(All, UnbiasedTest,
                         ::testing::Values("terngrad", "qsgd", "qsgd/levels=4", "randk/ratio=0.1,unbiased=1",
                                           "randk/ratio=0.3,unbiased=1"),
                         [](const auto& test) { return test_name(test.param); });

TEST_P(UnbiasedTest, TheMeanOfManyGenerationsIsWhatWasEncoded) {
  Moments moments;
  for (std::uint64_t generation = 0; generation < kDraws; ++generation) {
    const Slice slice{.job = 3, .generation = generation, .first = 256};
    moments.add(decoded(*codec_, slice, encoded(*codec_, slice, values_), kCount));
  }
  expect_mean_of_values(moments, 1);
}

TEST_P(UnbiasedTest, TheMeanOfSumsIsTheSum) {
  Moments moments;
  for (std::uint64_t generation = 0; generation < kDraws; ++generation) {
    const Slice slice{.job = 4, .generation = generation, .first = 0};
    const Bytes one = encoded(*codec_, slice, values_);
    const std::vector<std::span<const std::byte>> both{one, one};
    Bytes out(one.size());
    std::size_t garbage = 0;
    ASSERT_TRUE(codec_->combine(slice, both, out, {}, garbage).has_value());
    moments.add(decoded(*codec_, slice, out, kCount));
  }
  expect_mean_of_values(moments, 2);
}

TEST_P(UnbiasedTest, OtherJobsPlacesAndSeedsDrawOtherNumbers) {
  const Slice slice{.job = 3, .generation = 8, .first = 256};
  const Floats values(kCount, 0.3F);
  Floats varied = values;
  for (std::size_t i = 0; i < kCount; ++i) varied[i] += 0.001F * static_cast<float>(i);
  const Bytes code = encoded(*codec_, slice, varied);
  EXPECT_NE(code, encoded(*codec_, {.job = 4, .generation = 8, .first = 256}, varied));
  EXPECT_NE(code, encoded(*codec_, {.job = 3, .generation = 9, .first = 256}, varied));
  EXPECT_NE(code, encoded(*codec_, {.job = 3, .generation = 8, .first = 512}, varied));
  const std::string seeded = GetParam() + (GetParam().find('/') == std::string::npos ? "/" : ",") + "seed=5";
  EXPECT_NE(code, encoded(*codec_of(seeded), slice, varied));
}

// Nodes have about the same gradients. If they rounded alike, their errors would add up, and more nodes would not help.
TEST(RandomRounding, TheErrorsOfNodesAreIndependent) {
  constexpr std::size_t kNodes = 16, kBlocks = 64;
  for (const char* name : {"terngrad", "qsgd/levels=4"}) {
    const CodecPointer codec = codec_of(name);
    const Slice slice{.job = 1, .generation = 1, .first = 0};
    const Floats values = normal_values(256 * kBlocks, 1);
    std::vector<double> error(values.size());
    double alone = 0;
    for (std::size_t node = 0; node < kNodes; ++node) {
      Floats own = values;
      for (float& value : own) value *= 1 + 1e-5F * static_cast<float>(node + 1);
      const Floats back = decoded(*codec, slice, encoded(*codec, slice, own), own.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        error[i] += back[i] - own[i];
        alone += (back[i] - own[i]) * (back[i] - own[i]);
      }
    }
    double together = 0;
    for (const double one : error) together += one * one;
    EXPECT_NEAR(together / alone, 1, 0.1) << name << ": 16 if all round alike";
  }
}

TEST(Randk, SendsEachValueInItsTurn) {
  const CodecPointer codec = codec_of("randk/ratio=0.0625");
  std::vector<int> sent(256);
  const Floats ones(256, 1.0F);
  constexpr int kRounds = 2000;
  for (std::uint64_t generation = 0; generation < kRounds; ++generation) {
    const Slice slice{.job = 1, .generation = generation, .first = 0};
    const Floats back = decoded(*codec, slice, encoded(*codec, slice, ones), 256);
    for (std::size_t i = 0; i < 256; ++i) sent[i] += static_cast<int>(back[i]);
  }
  for (const int times : sent) EXPECT_NEAR(times, kRounds / 16.0, 60);
}

// The vote of `signs`, a node each, for 256 values that all have the magnitude 0.5.
Floats vote(const std::vector<std::vector<int>>& signs, std::uint64_t generation) {
  const CodecPointer codec = codec_of("signsgd");
  const Slice slice{.job = 1, .generation = generation, .first = 0};
  std::vector<Bytes> codes;
  for (const auto& node : signs) {
    Floats values(256);
    for (std::size_t i = 0; i < 256; ++i) values[i] = 0.5F * static_cast<float>(node[i]);
    codes.push_back(encoded(*codec, slice, values));
  }
  const std::vector<std::span<const std::byte>> spans(codes.begin(), codes.end());
  Bytes out(codes[0].size());
  std::size_t garbage = 0;
  EXPECT_TRUE(codec->combine(slice, spans, out, {}, garbage).has_value());
  return decoded(*codec, slice, out, 256);
}

TEST(Votes, TheMajorityWinsWithTheSumOfTheMagnitudes) {
  std::mt19937 random(4);
  for (const std::size_t nodes : {1U, 3U, 5U, 15U}) {
    std::vector<std::vector<int>> signs(nodes, std::vector<int>(256));
    for (auto& node : signs)
      for (int& sign : node) sign = random() % 2 == 0 ? 1 : -1;
    const Floats result = vote(signs, 7);
    for (std::size_t i = 0; i < 256; ++i) {
      int count = 0;
      for (const auto& node : signs) count += node[i];
      EXPECT_EQ(result[i], 0.5F * static_cast<float>(nodes) * (count > 0 ? 1.0F : -1.0F));
    }
  }
}

TEST(Votes, AFairCoinDecidesATie) {
  const std::vector<std::vector<int>> signs{std::vector<int>(256, 1), std::vector<int>(256, -1)};
  int positive = 0;
  constexpr int kRounds = 100;
  for (std::uint64_t generation = 0; generation < kRounds; ++generation)
    for (const float value : vote(signs, generation)) positive += value > 0 ? 1 : 0;
  EXPECT_NEAR(positive, kRounds * 256 / 2.0, 5 * std::sqrt(kRounds * 256 / 4.0));
  EXPECT_EQ(vote(signs, 3), vote(signs, 3));
}

TEST(Votes, AZeroVotesAsTheCoinFalls) {
  const CodecPointer codec = codec_of("signsgd");
  Floats values(256);
  values[0] = 256;
  int positive = 0;
  for (std::uint64_t generation = 0; generation < 100; ++generation) {
    const Slice slice{.job = 1, .generation = generation, .first = 0};
    const Floats back = decoded(*codec, slice, encoded(*codec, slice, values), 256);
    EXPECT_EQ(back[0], 1.0F);
    for (std::size_t i = 1; i < 256; ++i) positive += back[i] > 0 ? 1 : 0;
  }
  EXPECT_NEAR(positive, 100 * 255 / 2.0, 5 * std::sqrt(100 * 255 / 4.0));
}

TEST(Signum, VotesWithItsMomentum) {
  const CodecPointer codec = codec_of("signum/momentum=0.5");
  const Slice slice{.job = 1, .generation = 1, .first = 0};
  Floats momentum(300);
  Bytes code(codec->encoded_bytes(300));
  ASSERT_TRUE(codec->encode_with_momentum(slice, Floats(300, 8.0F), momentum, {}, code).has_value());
  EXPECT_EQ(momentum, Floats(300, 4.0F));
  ASSERT_TRUE(codec->encode_with_momentum(slice, Floats(300, -2.0F), momentum, {}, code).has_value());
  EXPECT_EQ(momentum, Floats(300, 1.0F));
  EXPECT_EQ(decoded(*codec, slice, code, 300), Floats(300, 1.0F)) << "the gradient is negative, its momentum is not";
  Floats bad(300, 1.0F);
  bad[299] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(codec->encode_with_momentum(slice, bad, momentum, {}, code).has_value());
  EXPECT_EQ(momentum[299], 1.0F) << "NaN never enters the momentum";
  EXPECT_TRUE(std::isnan(decoded(*codec, slice, code, 300)[298]));
}

}  // namespace
}  // namespace deft::compress
