// DeAR: which half goes when.
#include <gtest/gtest.h>

#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class Dear : public testing::Test {
 protected:
  Dear() {
    setup.policy = "dear";
    for (std::uint32_t i = 0; i < 3; ++i)
      setup.buckets.push_back({"b", i * kMiB, kMiB, model::DType::kFloat32, 2 - i, i, 1});
    setup.links = {{"l", 1, 1000}};
    setup.credit_bytes = 64 * kMiB;
  }

  std::vector<Launch> ready(model::BucketIndex bucket, std::uint64_t step = 0) {
    scheduler->bucket_ready(bucket, step, 0);
    return scheduler->take_launches(0);
  }
  std::vector<Launch> finish(const Launch& launch) {
    scheduler->part_finished(launch, 0);
    return scheduler->take_launches(0);
  }

  sched::Setup setup;
  std::unique_ptr<Scheduler> scheduler;
};

TEST_F(Dear, GathersInTheOrderOfForwardWhenTheLastReduceScatterHasEnded) {
  scheduler = make_scheduler(setup).value();
  std::vector<Launch> halves;
  for (model::BucketIndex bucket = 0; bucket < 3; ++bucket) {
    const auto launches = ready(bucket);
    ASSERT_EQ(launches.size(), 1U);
    EXPECT_EQ(launches[0].half, AllReduceHalf::kReduceScatter);
    halves.push_back(launches[0]);
  }
  EXPECT_TRUE(finish(halves[0]).empty());
  EXPECT_TRUE(finish(halves[2]).empty());
  const auto gathers = finish(halves[1]);
  ASSERT_EQ(gathers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gathers[i].half, AllReduceHalf::kAllGather);
    EXPECT_EQ(gathers[i].bucket, 2 - i);
    EXPECT_EQ(gathers[i].bytes, kMiB);
  }
  for (const Launch& launch : gathers) EXPECT_TRUE(finish(launch).empty());
}

TEST_F(Dear, RunsAreLongBesideTheLatencyOfTheFastestLinkAndOfNoOther) {
  setup.links = {{"slow", 20'000, 100}, {"fast", 100, 1000}};
  scheduler = make_scheduler(setup).value();
  EXPECT_TRUE(ready(0).empty());
  EXPECT_FALSE(ready(1).empty()) << "one run of all buckets hides nothing behind backward";
}

TEST_F(Dear, GathersNoMoreThanTheWindowAtOnce) {
  setup.credit_bytes = 1024;
  for (auto& bucket : setup.buckets) bucket.bytes *= 8, bucket.offset *= 8;
  scheduler = make_scheduler(setup).value();
  std::vector<Launch> halves;
  for (model::BucketIndex bucket = 0; bucket < 3; ++bucket)
    for (const Launch& launch : ready(bucket)) halves.push_back(launch);
  std::vector<Launch> gathers;
  for (std::size_t i = 0; i < halves.size(); ++i)
    for (const Launch& launch : finish(halves[i]))
      (launch.half == AllReduceHalf::kAllGather ? gathers : halves).push_back(launch);
  EXPECT_EQ(halves.size(), 3U);
  for (std::size_t i = 0; i < gathers.size(); ++i)
    for (const Launch& launch : finish(gathers[i])) gathers.push_back(launch);
  ASSERT_EQ(gathers.size(), 3U);
  EXPECT_EQ(gathers[0].bucket, 2U);
}

TEST_F(Dear, SaysWhichBucketsGoTogetherOnceItHasAProfile) {
  scheduler = make_scheduler(setup).value();
  EXPECT_FALSE(scheduler->take_fusion());
  model::Profile profile;
  for (const auto& bucket : setup.buckets) profile.buckets.push_back({"b", bucket.bytes, 100, 200, {}});
  profile.links = {{"l", 500, {}, 1000}};  // a run takes as long as 20 latencies
  ASSERT_TRUE(scheduler->wants_profile(9));
  scheduler->profile_measured(profile, 9, 0);
  const auto fusion = scheduler->take_fusion();
  ASSERT_TRUE(fusion);
  EXPECT_EQ(fusion->step, 9U);
  EXPECT_EQ(fusion->starts, std::vector<model::BucketIndex>{0});
  EXPECT_EQ(fusion->reason, "the first profile");
  EXPECT_TRUE(ready(0, 9).empty());
  EXPECT_TRUE(ready(1, 9).empty());
  const auto launches = ready(2, 9);
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].bytes, 3 * kMiB);
}

TEST_F(Dear, RefusesWhatHasNoHalves) {
  setup.no_halves = "link ps:10.0.0.9:29610 has none";
  EXPECT_EQ(make_scheduler(setup).error().what,
            "policy dear splits all-reduces into halves, and link ps:10.0.0.9:29610 has none");
}

}  // namespace
}  // namespace deft::sched
