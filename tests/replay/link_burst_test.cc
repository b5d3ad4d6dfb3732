// Links that carry some bytes at once after a pause.
#include "core/replay/link_burst.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/replay/replay.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

constexpr double kUsPerByte = 0.2, kBurst = 65'536;

// Periods of `bytes` each, with pauses in which the whole burst is earned.
std::vector<BusyPeriod> even_periods(double bytes, double burst) {
  std::vector<BusyPeriod> periods;
  for (int i = 0; i < 10; ++i)
    periods.push_back(
        {.begin_us = i * 1'000'000, .us = std::max(100.0, (bytes - burst) * kUsPerByte), .bytes = bytes, .parts = 4});
  return periods;
}

// What has come after each of 8 segments of a period.
std::vector<Arrival> arrivals_in(const std::vector<BusyPeriod>& periods, double burst) {
  std::vector<Arrival> arrivals;
  for (std::size_t i = 0; i < periods.size(); ++i)
    for (int segment = 1; segment <= 8; ++segment) {
      const double bytes = periods[i].bytes * segment / 8;
      arrivals.push_back({i, 100 + std::max(0.0, bytes - burst) * kUsPerByte, bytes});
    }
  return arrivals;
}

TEST(LinkBurst, OfPeriodsThatAreAlikeOnlyWhatComesWithinThemTellsIt) {
  const auto periods = even_periods(1e6, kBurst);
  EXPECT_EQ(burst_of(periods, {}), 0);
  EXPECT_NEAR(burst_of(periods, arrivals_in(periods, kBurst)), kBurst, 0.2 * kBurst);
}

TEST(LinkBurst, ALinkWithoutOneHasNone) {
  const auto periods = even_periods(1e6, 0);
  EXPECT_EQ(burst_of(periods, arrivals_in(periods, 0)), 0);
  EXPECT_EQ(burst_of({}, {}), 0);
}

TEST(LinkBurst, APauseEarnsNoMoreThanItIsLong) {
  std::vector<BusyPeriod> periods = {{0, 10'000, 100'000, 1}, {12'000, 10'000, 60'000, 1}};
  const auto slow = without_burst(periods, 50'000);
  EXPECT_NEAR(slow[0].bytes, 50'000, 1) << "the burst is there at first";
  EXPECT_NEAR(slow[1].bytes, 60'000 - 2000 / 0.198, 300) << "2 ms of pause";
}

// The same network under another policy, from a trace whose parts mostly come after pauses.
TEST(LinkBurst, WithItReplayForeseesAPolicyThatKeepsTheLinkBusy) {
  auto truth = even_profile(24, 60'000, 0.05, 50, 100'000);
  truth.links.front().burst_bytes = kBurst;
  for (std::size_t i = 0; i < truth.buckets.size(); ++i) truth.buckets[i].bytes = i % 3 == 0 ? 150'000 : 20'000;
  const auto measured = measure(traced_simulation(truth, "fifo", {.steps = 30, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_NEAR(measured->profile.links.front().burst_bytes, kBurst, 0.25 * kBurst);
  EXPECT_NEAR(*measured->profile.links.front().bytes_per_us, 20, 0.4);
  for (const std::string policy : {"fifo", "bytescheduler"}) {
    const auto prediction = replay(*measured, {.policy = policy});
    ASSERT_TRUE(prediction) << prediction.error().message();
    const double us = simulated_us(truth, policy);
    EXPECT_NEAR(prediction->step_us_p50, us, 0.02 * us) << policy;
  }
}

}  // namespace
}  // namespace deft::replay
