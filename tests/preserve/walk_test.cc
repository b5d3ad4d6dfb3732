// The formulas against Monte Carlo runs of the walk itself.
#include "core/preserve/walk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "core/preserve/preserver.h"

namespace deft::preserve {
namespace {

// The mean state after the updates of `merged` steps each, over many runs, with the standard error of that mean.
struct Sample {
  double mean;
  double error;
};

Sample run_walks(const Walk& walk, const std::vector<unsigned>& merged, MergeScale merging, int runs) {
  std::mt19937_64 random(7);
  std::normal_distribution<> normal;
  double sum = 0;
  double squares = 0;
  for (int run = 0; run < runs; ++run) {
    double s = walk.state;
    for (const unsigned k : merged) {
      // The mean of k steps' gains; a sum of them is k times that.
      const double gain = walk.gradient_mean + walk.gradient_deviation / std::sqrt(walk.batch * k) * normal(random);
      const double scale = merging == MergeScale::kSum ? walk.learning_rate * k : walk.learning_rate;
      const double next = s - scale * gain;
      s = next >= walk.target ? next : 2 * walk.target - next;
    }
    sum += s;
    squares += s * s;
  }
  const double mean = sum / runs;
  return {mean, std::sqrt((squares / runs - mean * mean) / runs)};
}

double expected(const Walk& walk, const std::vector<unsigned>& merged, MergeScale merging) {
  Position position(walk);
  for (const unsigned k : merged) position.update(k, merging);
  return position.mean();
}

const Walk kFar{
    .state = 0.2103, .target = 0, .learning_rate = 0.01, .gradient_mean = 0.5, .gradient_deviation = 5, .batch = 256};
const Walk kNear{
    .state = 0.01, .target = 0.002, .learning_rate = 0.01, .gradient_mean = 0.5, .gradient_deviation = 30, .batch = 64};
const Walk kNoisy{
    .state = 0.05, .target = 0, .learning_rate = 0.1, .gradient_mean = 0.1, .gradient_deviation = 8, .batch = 32};

TEST(Walk, oneUpdateIsExactForEveryMerge) {
  for (const Walk& walk : {kFar, kNear, kNoisy})
    for (const unsigned k : {1U, 2U, 5U})
      for (const auto merging : {MergeScale::kSum, MergeScale::kMean}) {
        const auto sample = run_walks(walk, {k}, merging, 400'000);
        EXPECT_NEAR(expected(walk, {k}, merging), sample.mean, 4 * sample.error) << walk.state << " k " << k;
      }
}

TEST(Walk, severalUpdatesAgreeWithTheWalkWithinAThousandth) {
  for (const Walk& walk : {kFar, kNear, kNoisy})
    for (const auto& merged :
         {std::vector<unsigned>{1, 1, 1, 1}, {2, 1, 1}, {1, 2, 1, 2, 1, 2}, std::vector<unsigned>(24, 1)}) {
      const auto sample = run_walks(walk, merged, MergeScale::kSum, 200'000);
      EXPECT_NEAR(expected(walk, merged, MergeScale::kSum) / sample.mean, 1, 1e-3 + 4 * sample.error / sample.mean)
          << walk.state << " n " << merged.size();
    }
}

TEST(Walk, withoutNoiseItIsTheDistanceFromTheTarget) {
  const Walk walk{
      .state = 1, .target = 0.25, .learning_rate = 1, .gradient_mean = 0.5, .gradient_deviation = 0, .batch = 1};
  EXPECT_DOUBLE_EQ(expected(walk, {1}, MergeScale::kSum), 0.5);
  EXPECT_DOUBLE_EQ(expected(walk, {2}, MergeScale::kSum), 0.5);  // beyond the target by 0.25, and back
  EXPECT_DOUBLE_EQ(expected(walk, {2}, MergeScale::kMean), 0.5);
}

// The factor for staleness against the delayed linear walk that it is derived from, in its continuous limit: a small
// pull and a long delay.
TEST(Walk, stalenessNoiseIsThatOfTheDelayedWalk) {
  std::mt19937_64 random(11);
  std::normal_distribution<> normal;
  for (const double angle : {0.25, 0.5, 1.0}) {
    constexpr int kDelay = 25;
    constexpr int kWarm = 20'000;
    constexpr int kRun = 4'000'000;
    const double pull = angle / kDelay;
    std::vector<double> past(kDelay + 1, 0);
    double x = 0;
    double squares = 0;
    for (int t = 0; t < kWarm + kRun; ++t) {
      const double old = past[static_cast<std::size_t>(t) % past.size()];  // x of kDelay + 1 updates before
      past[static_cast<std::size_t>(t) % past.size()] = x;
      x += -pull * (t > kDelay ? past[static_cast<std::size_t>(t - kDelay) % past.size()] : old) + normal(random);
      if (t >= kWarm) squares += x * x;
    }
    const double fresh = 1 / (2 * pull);
    EXPECT_NEAR(squares / kRun / fresh / staleness_noise(pull, kDelay), 1, 0.1) << angle;
  }
}

TEST(Walk, staleWalksThatDivergeAreInfinitelyNoisy) {
  EXPECT_DOUBLE_EQ(staleness_noise(0.1, 0), 1);
  EXPECT_TRUE(std::isinf(staleness_noise(1, 2)));
  EXPECT_TRUE(std::isinf(staleness_noise(std::numbers::pi / 2, 1)));
}

}  // namespace
}  // namespace deft::preserve
