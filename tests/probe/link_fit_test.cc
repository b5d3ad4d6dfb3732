// The fit behind `deft probe`: it finds what made the samples, and its errors say how well.
#include "core/model/link_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace deft::model {
namespace {

using ::testing::HasSubstr;

std::vector<LinkSample> samples_of(double latency_us, double bytes_per_us, double noise, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> relative(0, noise);
  std::vector<LinkSample> samples;
  for (const std::uint64_t bytes :
       {4ULL, 4096ULL, 16384ULL, 65536ULL, 262144ULL, 1048576ULL, 4194304ULL, 16777216ULL}) {
    const double us = latency_us + static_cast<double>(bytes) / bytes_per_us;
    samples.push_back({bytes, us * (1 + (noise > 0 ? relative(random) : 0))});
  }
  return samples;
}

TEST(LinkFit, FindsTheLineThatMadeTheSamples) {
  for (const double latency : {0.0, 20.0, 5000.0}) {
    for (const double throughput : {1.0, 117.0, 9000.0}) {
      const auto fit = fit_link(samples_of(latency + 1e-3, throughput, 0, 0));
      ASSERT_TRUE(fit) << fit.error().message();
      EXPECT_NEAR(fit->latency_us, latency, 1e-2 + 1e-6 * latency);
      EXPECT_NEAR(fit->bytes_per_us, throughput, 1e-6 * throughput);
      EXPECT_LT(fit->bytes_per_us_error, 1e-5 * throughput);
    }
  }
}

// Two standard errors hold the truth in 95 % of the cases of a known deviation; with one estimated from 8 samples in 91 %.
TEST(LinkFit, ItsErrorsHoldTheTruthAsOftenAsTheySay) {
  int latency_held = 0, throughput_held = 0;
  constexpr int kCases = 1000;
  for (int i = 0; i < kCases; ++i) {
    const auto fit = fit_link(samples_of(80, 117, 0.05, static_cast<std::uint64_t>(i)));
    ASSERT_TRUE(fit);
    latency_held += std::abs(fit->latency_us - 80) < 2 * fit->latency_error_us ? 1 : 0;
    throughput_held += std::abs(fit->bytes_per_us - 117) < 2 * fit->bytes_per_us_error ? 1 : 0;
  }
  for (const int held : {latency_held, throughput_held}) {
    EXPECT_GT(held, kCases * 85 / 100);
    EXPECT_LT(held, kCases * 97 / 100);
  }
}

// With three samples the deviation rests on one degree of freedom: the mean of its square is right only if it counts so.
TEST(LinkFit, ItsErrorsAreRightOnAverageWithTheFewestSamples) {
  double missed = 0, said = 0;
  std::mt19937_64 random(1);
  std::normal_distribution<double> relative(0, 0.01);
  for (int i = 0; i < 4000; ++i) {
    std::vector<LinkSample> samples;
    for (const std::uint64_t bytes : {4096ULL, 65536ULL, 1048576ULL})
      samples.push_back({bytes, (80 + static_cast<double>(bytes) / 117) * (1 + relative(random))});
    const auto fit = fit_link(samples);
    ASSERT_TRUE(fit);
    missed += (fit->latency_us - 80) * (fit->latency_us - 80);
    said += fit->latency_error_us * fit->latency_error_us;
  }
  EXPECT_GT(said / missed, 0.8);
  EXPECT_LT(said / missed, 1.25);
}

TEST(LinkFit, ALatencyBelowZeroIsZero) {
  const auto fit = fit_link(std::vector<LinkSample>{{1000, 9}, {2000, 20}, {3000, 31}});
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->latency_us, 0);
  EXPECT_NEAR(fit->bytes_per_us, 100, 10);
}

TEST(LinkFit, SaysWhatItCannotFit) {
  const auto error = [](const std::vector<LinkSample>& samples) {
    const auto fit = fit_link(samples);
    return fit ? std::string("fitted") : fit.error().message();
  };
  EXPECT_THAT(error({}), HasSubstr("0 sizes are too few"));
  EXPECT_THAT(error({{1, 1}, {1, 2}, {2, 1}, {2, 2}}), HasSubstr("2 sizes are too few"));
  EXPECT_THAT(error({{1, 1}, {2, 0}, {3, 1}}), HasSubstr("cannot be"));
  EXPECT_THAT(error({{1, 1}, {2, NAN}, {3, 1}}), HasSubstr("cannot be"));
  EXPECT_THAT(error({{1, 100}, {1000, 10}, {1000000, 1}}), HasSubstr("too much noise"));
}

}  // namespace
}  // namespace deft::model
