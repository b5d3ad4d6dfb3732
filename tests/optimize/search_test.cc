#include "core/optimize/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/replay/traced_simulation.h"

namespace deft::optimize {
namespace {

// `buckets` equal buckets on one link whose transfers cost 400 us each; communication takes longer than backward.
replay::MeasuredJob measured_job(std::size_t buckets, const std::string& policy) {
  constexpr double kTotalBytes = 8e6;
  model::Profile profile;
  for (std::size_t i = 0; i < buckets; ++i)
    profile.buckets.push_back({"b" + std::to_string(buckets - 1 - i),
                               static_cast<std::uint64_t>(kTotalBytes / static_cast<double>(buckets)) + i % 3 * 500,
                               20'000.0 / static_cast<double>(buckets),
                               40'000.0 / static_cast<double>(buckets),
                               {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 400, .relative_time = {}, .bytes_per_us = 150});
  auto measured = replay::measure(replay::traced_simulation(profile, policy, {.steps = 20, .nodes = {{}, {}}}));
  EXPECT_TRUE(measured);
  measured->profile.links = profile.links;  // equal parts do not tell latency and throughput apart
  return *std::move(measured);
}

bool never() { return false; }

// From far too small buckets and from one bucket, the search is within 2 percent of the best of all its sizes.
TEST(Search, FromBadSettingsItFindsWhatAnExhaustiveSearchFinds) {
  for (const std::size_t buckets : {400U, 2U}) {
    const auto measured = measured_job(buckets, "fifo");
    const std::vector<std::string> policies = {"fifo", "bytescheduler", "p3"};
    const auto found = search(measured, {.policies = policies}, never);
    ASSERT_TRUE(found) << found.error().message();
    double best_us = found->traced_us;
    for (const auto& policy : policies)
      for (std::uint64_t bucket = 65'536; bucket <= (std::uint64_t{8} << 20); bucket *= 2)
        for (std::uint64_t part = 65'536; part <= (std::uint64_t{4} << 20); part *= 4)
          for (std::uint64_t credit = std::uint64_t{1} << 20; credit <= (std::uint64_t{16} << 20); credit *= 4)
            if (const double us = replayed_us(measured, {policy, bucket, part, credit}); us > 0)
              best_us = std::min(best_us, us);
    EXPECT_LT(found->step_us, 1.02 * best_us) << buckets;
    EXPECT_TRUE(found->worth_it());
    EXPECT_LT(found->step_us, 0.9 * found->traced_us);
    EXPECT_DOUBLE_EQ(found->step_us, replayed_us(measured, found->settings)) << "it promises what replay says";
  }
}

TEST(Search, OfAJobThatComputesAllTheTimeKeepsTheSettings) {
  auto measured = measured_job(12, "bytescheduler");
  for (auto& link : measured.profile.links) link.bytes_per_us = 1e6, link.latency_us = 1;
  for (auto& us : measured.steps_us) us = 60'000;
  const auto found = search(measured, {.policies = exact_policies()}, never);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->worth_it());
}

TEST(Search, WithoutTimeItKeepsTheSettings) {
  const auto measured = measured_job(400, "fifo");
  const auto found = search(measured, {.policies = exact_policies()}, [] { return true; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->settings, found->traced);
  EXPECT_EQ(found->replays, 0U);
  EXPECT_FALSE(found->worth_it());
}

TEST(Search, ForARunningJobItKeepsTheBuckets) {
  const auto measured = measured_job(2, "fifo");
  const auto free = search(measured, {.policies = {"bytescheduler"}}, never);
  const auto kept = search(measured, {.policies = {"bytescheduler"}, .keeps_buckets = true}, never);
  ASSERT_TRUE(free && kept);
  EXPECT_NE(free->settings.bucket_bytes, 0U);
  EXPECT_EQ(kept->settings.bucket_bytes, 0U);
  EXPECT_EQ(kept->settings.policy, "bytescheduler");
  EXPECT_LT(kept->step_us, kept->traced_us) << "parts let the urgent bucket overtake";
}

TEST(Search, TellsOnlyTheOptionsThatChange) {
  const Settings traced{"fifo", 0, 1 << 20, 4 << 20};
  Settings other = traced;
  other.policy = "p3", other.bucket_bytes = 65'536;
  EXPECT_EQ(other.options(traced),
            (std::map<std::string, std::string>{{"policy", "p3"}, {"bucketing", "uniform:65536"}}));
  EXPECT_THAT(exact_policies(), testing::Not(testing::Contains("knapsack")));
}

}  // namespace
}  // namespace deft::optimize
