// What samples tell, against draws from gradients that are known; and how steady it is.
#include "core/preserve/trend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/preserve/loss_watch.h"

namespace deft::preserve {
namespace {

// Two workers' gradients in a space of kDimensions: one of squared norm `gradient`, and noise of tr(Sigma) / B = `noise`
// in the average.
class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}

  Norms norms(double gradient, double noise) {
    constexpr int kDimensions = 50;
    double local = 0, average = 0;
    const double spread = std::sqrt(2 * noise / kDimensions);
    for (int d = 0; d < kDimensions; ++d) {
      const double mean = std::sqrt(gradient / kDimensions);
      const double a = mean + spread * normal_(random_), b = mean + spread * normal_(random_);
      local += (a * a + b * b) / 2;
      average += (a + b) * (a + b) / 4;
    }
    return norms_of_step(local, average, 2).value();
  }
  double normal() { return normal_(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<> normal_;
};

TEST(Trend, tellsTheGradientFromItsNoise) {
  const auto norms = norms_of_step(0.5 + 4 * 0.25, 0.5 + 0.25, 4);
  ASSERT_TRUE(norms);
  EXPECT_NEAR(norms->gradient, 0.5, 1e-12);
  EXPECT_NEAR(norms->noise, 0.25, 1e-12);
  EXPECT_FALSE(norms_of_step(1, 1, 1));
  EXPECT_FALSE(norms_of_step(INFINITY, 1, 2));
}

TEST(Trend, whatIsTrueLiesWithinTheErrors) {
  int gradients = 0, noises = 0, falls = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    Draws draws(static_cast<unsigned>(run));
    Trend trend;
    for (int i = 0; i < 60; ++i) trend.take(draws.norms(0.5, 0.5), 8.0 * i, 2 - 0.001 * 8 * i + 0.05 * draws.normal());
    const auto holds = [](const Value& value, double truth) { return value.low() <= truth && truth <= value.high(); };
    gradients += holds(trend.gradient(), 0.5);
    noises += holds(trend.noise(), 0.5);
    falls += holds(trend.fall(), 0.001);
    EXPECT_NEAR(trend.fall().error, 0.00015, 0.00015);
  }
  EXPECT_GT(gradients, 0.88 * kRuns);
  EXPECT_GT(noises, 0.88 * kRuns);
  EXPECT_GT(falls, 0.88 * kRuns);
}

TEST(Trend, fewSamplesClaimNothing) {
  Trend trend;
  EXPECT_TRUE(std::isinf(trend.fall().error));
  trend.take({0.5, 0.5}, 1, 2);
  EXPECT_TRUE(std::isinf(trend.gradient().error));
  for (int i = 2; i < 4; ++i) trend.take({0.5, 0.5}, i, 2);
  EXPECT_TRUE(std::isinf(trend.fall().error));
  trend.take({0.5, 0.5}, 4, 2);
  EXPECT_EQ(trend.fall().mean, 0);
  EXPECT_EQ(trend.fall().error, 0);
}

TEST(Trend, followsAStraightLine) {
  Trend trend;
  for (int i = 0; i < 40; ++i) trend.take({1, 1}, 3 * i, 5 - 0.25 * 3 * i);
  EXPECT_NEAR(trend.fall().mean, 0.25, 1e-9);
  EXPECT_NEAR(trend.fall().error, 0, 1e-6);
}

TEST(Trend, aGradientThatFallsToATenthIsNoticedWithinAWindow) {
  Draws draws(3);
  Trend trend;
  for (int i = 0; i < 60; ++i) trend.take(draws.norms(5, 0.5), 8.0 * i, 2);
  const double before = trend.gradient().low();
  int samples = 0;
  for (; trend.gradient().high() >= before && samples < 100; ++samples)
    trend.take(draws.norms(0.5, 0.5), 8.0 * (60 + samples), 2);
  EXPECT_LE(samples, kWindow);
  for (int i = 0; i < 3 * kWindow; ++i) trend.take(draws.norms(0.5, 0.5), 1000 + i, 2);
  EXPECT_LT(trend.gradient().mean, 1);
}

// The losses of bench/lateness around the step from which everything is merged over two steps and one step late, every
// fourth: training that is about to be destroyed. And those with the widest matrix alone merged over five steps.
TEST(LossWatch, seesLateUpdatesThatAreNotBorneWithinTwelveSamples) {
  Draws draws(5);
  Trend trend;
  LossWatch watch;
  double updates = 0;
  const auto take = [&](double loss) {
    trend.take({1, 1}, updates += 4, loss);
    watch.take(loss, trend);
  };
  for (int i = 0; i < 30; ++i) take(0.95 - 0.005 * i + 0.07 * draws.normal());
  EXPECT_FALSE(watch.risen(0));
  int samples = 0;
  for (; !watch.risen(0) && samples < 20; ++samples) take(std::min(1.4, 0.8 + 0.06 * samples) + 0.07 * draws.normal());
  EXPECT_LE(samples, 12);
  watch.forget();
  EXPECT_FALSE(watch.risen(0));
}

TEST(LossWatch, aLossThatFallsOrStaysNeverAlarms) {
  int alarms = 0;
  for (unsigned run = 0; run < 50; ++run) {
    Draws draws(run);
    Trend trend;
    LossWatch watch;
    bool risen = false;
    for (int i = 0; i < 400; ++i) {
      const double loss = 0.4 + 1.9 * std::exp(-0.02 * i) + 0.07 * draws.normal();
      trend.take({1, 1}, 8.0 * i, loss);
      watch.take(loss, trend);
      risen = risen || watch.risen(0);
    }
    alarms += risen;
  }
  EXPECT_LE(alarms, 5);
}

}  // namespace
}  // namespace deft::preserve
