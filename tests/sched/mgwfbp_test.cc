// What MG-WFBP merges, when, and when it looks again.
#include <gmock/gmock.h>

#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

using model::BucketIndex;

MATCHER_P3(Part, bucket, offset, bytes, "") {
  return arg.bucket == static_cast<BucketIndex>(bucket) && arg.offset == static_cast<std::uint64_t>(offset) &&
         arg.bytes == static_cast<std::uint64_t>(bytes);
}

// Buckets of 100 bytes one behind the other.
Setup setup_of(std::size_t buckets, std::vector<model::LinkModel> links) {
  Setup setup;
  setup.policy = "mgwfbp";
  setup.links = std::move(links);
  for (std::uint32_t i = 0; i < buckets; ++i)
    setup.buckets.push_back(
        {"b", 100ULL * i, 100, model::DType::kInt8, static_cast<std::uint32_t>(buckets) - 1 - i, i, 1});
  setup.partition_bytes = 1 << 20;
  return setup;
}

// Backward takes so long for each bucket, in the order of production.
model::Profile profile_of(const Setup& setup, const std::vector<double>& backward_us) {
  model::Profile profile;
  for (std::size_t b = setup.buckets.size(); b-- > 0;)
    profile.buckets.push_back({"b" + std::to_string(b), setup.buckets[b].bytes, 1, backward_us[b], {}});
  for (const auto& link : setup.links) profile.links.push_back({link.name, link.latency_us, {}, link.bytes_per_us});
  return profile;
}

std::vector<Launch> launches_of_step(Scheduler& scheduler, std::uint64_t step, const std::vector<BucketIndex>& order) {
  for (const BucketIndex bucket : order) scheduler.bucket_ready(bucket, step, 0);
  std::vector<Launch> all;
  for (auto some = scheduler.take_launches(0); !some.empty(); some = scheduler.take_launches(0)) {
    for (const Launch& launch : some) scheduler.part_finished(launch, 0);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(MgWfbp, MergesWhatWaitsForTheLinkAnywayAndSendsItWhenTheLastIsReady) {
  // The first goes at 10 and takes 105; the others are ready meanwhile.
  auto setup = setup_of(3, {{"l", 5, 1}});
  auto scheduler = *make_scheduler(setup);
  scheduler->profile_measured(profile_of(setup, {10, 10, 10}), 0, 0);
  scheduler->bucket_ready(2, 0, 0);
  EXPECT_TRUE(scheduler->take_launches(0).empty());
  scheduler->bucket_ready(0, 0, 0);
  EXPECT_THAT(scheduler->take_launches(0), testing::ElementsAre(Part(0, 0, 100)));
  scheduler->bucket_ready(1, 0, 0);
  EXPECT_THAT(scheduler->take_launches(0), testing::ElementsAre(Part(1, 0, 200)));
  EXPECT_EQ(scheduler->take_updates().size(), 3u);
}

TEST(MgWfbp, KeepsApartWhatWouldOnlyBeDelayed) {
  auto setup = setup_of(2, {{"l", 5, 1}});
  auto scheduler = *make_scheduler(setup);
  scheduler->profile_measured(profile_of(setup, {500, 500}), 0, 0);
  EXPECT_THAT(launches_of_step(*scheduler, 0, {0, 1}), testing::ElementsAre(Part(0, 0, 100), Part(1, 0, 100)));
}

TEST(MgWfbp, MergesNothingOverABorderOfTypesOrOverAGap) {
  auto setup = setup_of(6, {{"l", 1000, 1}});
  for (const std::size_t i : {2, 3, 4, 5}) setup.buckets[i].dtype = model::DType::kUInt8;
  for (const std::size_t i : {4, 5}) setup.buckets[i].offset += 4096;
  auto scheduler = *make_scheduler(setup);
  scheduler->profile_measured(profile_of(setup, {1, 1, 1, 1, 1, 1}), 0, 0);
  EXPECT_THAT(launches_of_step(*scheduler, 0, {0, 1, 2, 3, 4, 5}),
              testing::ElementsAre(Part(0, 0, 200), Part(2, 0, 200), Part(4, 0, 200)));
}

TEST(MgWfbp, SharesWhatItMergedAmongLinksInPartsThatCrossBuckets) {
  auto setup = setup_of(4, {{"a", 16'000, 1}, {"b", 16'000, 1}});
  for (std::size_t i = 0; i < 4; ++i) setup.buckets[i].offset = 1600 * i, setup.buckets[i].bytes = 1600;
  setup.partition_bytes = 3072;
  setup.credit_bytes = 1 << 20;
  auto scheduler = *make_scheduler(setup);
  scheduler->profile_measured(profile_of(setup, {1, 1, 1, 1}), 0, 0);
  for (const BucketIndex bucket : {0, 1, 2, 3}) scheduler->bucket_ready(bucket, 0, 0);
  const auto launches = scheduler->take_launches(0);
  EXPECT_THAT(launches, testing::ElementsAre(Part(0, 0, 3072), Part(1, 1472, 3072), Part(3, 1344, 256)));
  EXPECT_NE(launches[0].link, launches[1].link);
}

// Steps as the daemon sees them: all buckets of a step ready one after the other, `gap_us` apart.
class Live {
 public:
  explicit Live(const Setup& setup)
      : scheduler_(measured(*make_scheduler(setup), setup)), buckets_(setup.buckets.size()) {}

  std::vector<Launch> step(TimeUs gap_us) {
    scheduler_->stage_began(Stage::kForward, step_, now_, 0);
    now_ += 100;
    scheduler_->stage_began(Stage::kBackward, step_, now_, 0);
    for (BucketIndex bucket = 0; bucket < buckets_; ++bucket) scheduler_->bucket_ready(bucket, step_, now_ += gap_us);
    ++step_;
    std::vector<Launch> all;
    for (auto some = scheduler_->take_launches(now_); !some.empty(); some = scheduler_->take_launches(now_)) {
      for (const Launch& launch : some) scheduler_->part_finished(launch, now_);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  // The first of so many steps that has another number of launches than `before`, and why; 0 and nothing: none.
  std::pair<std::uint64_t, std::string> change(TimeUs gap_us, std::size_t before, int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto number = step_;
      if (step(gap_us).size() == before) continue;
      const auto merging = scheduler_->take_fusion();
      EXPECT_TRUE(merging.has_value());
      EXPECT_EQ(merging->step, number);
      return {number, merging->reason};
    }
    EXPECT_FALSE(scheduler_->take_fusion().has_value());
    return {};
  }

  Scheduler& operator*() { return *scheduler_; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  std::size_t buckets_;
  std::uint64_t step_ = 0;
  TimeUs now_ = 0;
};

TEST(MgWfbp, BeginsApartAndMergesByTheFirstProfile) {
  Live live(setup_of(4, {{"l", 50, 1}}));
  for (int step = 0; step < 8; ++step) EXPECT_EQ(live.step(10).size(), 4u);
  const auto [step, reason] = live.change(10, 4, 1);
  EXPECT_EQ(step, 8u);
  EXPECT_EQ(reason, "the first profile");
  EXPECT_EQ(live.change(10, 1, 40).first, 0u) << "nothing has moved";
}

TEST(MgWfbp, LooksAgainWhenTheModelOrTheLinkHasMovedForGood) {
  Live live(setup_of(4, {{"l", 50, 1}}));
  EXPECT_EQ(live.change(10, 4, 9).first, 8u);
  const auto slower = live.change(1000, 1, 60);  // nothing is ready while the one before it is on its way
  EXPECT_GE(slower.first, 9 + 3 * 8u);
  EXPECT_THAT(slower.second, testing::HasSubstr("compute time (us) went from"));
  (*live).link_measured(0, {"l", 5000, 1});
  const auto dearer = live.change(1000, 4, 60);
  EXPECT_GT(dearer.first, 0u);
  EXPECT_THAT(dearer.second, testing::HasSubstr("latency (us) went from 50 to 5000"));
}

TEST(MgWfbp, ALostLinkNoLongerCounts) {
  Live live(setup_of(4, {{"fast", 0, 100}, {"slow", 50, 1}}));
  EXPECT_EQ(live.change(10, 4, 12).first, 0u) << "the fast link starts up for nothing";
  (*live).link_lost(0);
  const auto [step, reason] = live.change(10, 4, 1);
  EXPECT_EQ(step, 12u);
  EXPECT_EQ(reason, "the loss of link 0");
}

}  // namespace
}  // namespace deft::sched
