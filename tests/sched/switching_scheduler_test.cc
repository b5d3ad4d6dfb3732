// A change of policy between steps loses, doubles and delays nothing, whenever it comes.
#include "core/sched/switching_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "core/base/policy_traits.h"
#include "core/sched/profile_meter.h"
#include "tests/sched/told_selector.h"

namespace deft::sched {
namespace {

using model::BucketIndex;

std::string any_exact_policy() {
  std::vector<std::string> names;
  for (const PolicyTraits& traits : kPolicyTraits)
    if (is_exact(traits)) names.emplace_back(traits.name);
  return *rc::gen::elementOf(names);
}

// The credit may be below the size of a part, and each of the three may stay as it is.
SettingsChange any_change() {
  const auto maybe_bytes = [] {
    return *rc::gen::maybe(
        rc::gen::map(rc::gen::inRange(0, 10), [](int power) { return std::uint64_t{4096} << power; }));
  };
  SettingsChange change;
  if (*rc::gen::arbitrary<bool>()) change.policy = any_exact_policy();
  if (const auto bytes = maybe_bytes()) change.partition_bytes = *bytes;
  if (const auto bytes = maybe_bytes()) change.credit_bytes = *bytes;
  return change;
}

// Some parts of the newest step may still be in flight when the next one begins, as if forward did not need them.
class Play {
 public:
  explicit Play(const Setup& setup) : setup_(setup), scheduler_(measured(make_switching(setup).value(), setup)) {}

  Scheduler& scheduler() { return *scheduler_; }

  void step(std::uint64_t step, std::size_t may_stay) {
    now_ += 100;
    scheduler_->stage_began(Stage::kForward, step, now_, 0);
    collect();
    now_ += 100;
    scheduler_->stage_began(Stage::kBackward, step, now_, 0);
    for (BucketIndex bucket = 0; bucket < setup_.buckets.size(); ++bucket) {
      now_ += *rc::gen::inRange(0, 300);
      if (!flight_.empty() && *rc::gen::arbitrary<bool>()) finish_one();
      ready_.insert({bucket, step});
      scheduler_->bucket_ready(bucket, step, now_);
      collect();
    }
    while (flight_.size() > may_stay) finish_one();
  }

  void finish_all(std::uint64_t steps) {
    while (!flight_.empty()) finish_one();
    for (std::uint64_t step = 0; step < steps; ++step)
      for (BucketIndex bucket = 0; bucket < setup_.buckets.size(); ++bucket) {
        std::uint64_t at = 0;
        for (const auto& [offset, bytes] : ranges_[{bucket, step}]) {
          RC_ASSERT(offset == at);
          at += bytes;
        }
        RC_ASSERT(at == setup_.buckets[bucket].bytes);
      }
    RC_ASSERT(updates_.size() == steps * setup_.buckets.size());
  }

  [[nodiscard]] bool overlapped() const { return overlapped_; }

 private:
  void finish_one() {
    now_ += *rc::gen::inRange(0, 200);
    const Launch done = flight_.front();
    flight_.pop_front();
    if (done.half != AllReduceHalf::kReduceScatter) book(done);
    scheduler_->part_finished(done, now_);
    collect();
  }

  void book(const Launch& launch) {
    const auto bytes_of = [this](BucketIndex bucket) { return setup_.buckets[bucket].bytes; };
    RC_ASSERT(model::for_each_piece(
        {launch.bucket, launch.offset, launch.bytes}, setup_.buckets.size(), bytes_of,
        [&](const model::BucketPiece& piece) {
          return ranges_[{piece.bucket, launch.generation}].emplace(piece.offset, piece.bytes).second;
        }));
  }

  void collect() {
    for (const Launch& launch : scheduler_->take_launches(now_)) {
      RC_ASSERT(launch.id == launches_++);
      RC_ASSERT((ready_.contains({launch.bucket, launch.generation})));
      if (!flight_.empty() && flight_.back().generation < launch.generation) overlapped_ = true;
      flight_.push_back(launch);
    }
    for (const Update& update : scheduler_->take_updates())
      RC_ASSERT(
          (updates_.emplace(update.bucket, update.generation).second && update.apply_step == update.last_step + 1));
  }

  Setup setup_;
  std::unique_ptr<Scheduler> scheduler_;
  TimeUs now_ = 0;
  std::deque<Launch> flight_;
  std::uint64_t launches_ = 0;
  std::set<std::pair<BucketIndex, std::uint64_t>> ready_;
  std::map<std::pair<BucketIndex, std::uint64_t>, std::map<std::uint64_t, std::uint64_t>> ranges_;
  std::set<std::pair<BucketIndex, std::uint64_t>> updates_;
  bool overlapped_ = false;
};

RC_GTEST_PROP(Switching, SendsEveryByteOnceWheneverThePolicyChanges, ()) {
  const auto sizes = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::uint64_t>>(
      rc::gen::map(rc::gen::inRange<std::uint64_t>(1, 20'000), [](std::uint64_t n) { return 4 * n; })));
  auto setup = auto_setup(sizes, *rc::gen::inRange<std::size_t>(1, 4));
  setup.policy = any_exact_policy();
  Play play(setup);
  const std::uint64_t steps = 12;
  for (std::uint64_t step = 0; step < steps; ++step) {
    if (*rc::gen::inRange(0, 2) == 0) RC_ASSERT(play.scheduler().change_settings(any_change()).has_value());
    play.step(step, *rc::gen::inRange<std::size_t>(0, 3));
  }
  play.finish_all(steps);
  RC_CLASSIFY(play.overlapped());
}

RC_GTEST_PROP(Switching, SendsEveryByteOnceWhileItChoosesByItself, ()) {
  auto setup = auto_setup({4096, 65536, 4, 20'000}, 2);
  const auto selector = std::make_shared<ToldSelector>();
  double us = 100;
  for (const auto& choice : PolicyChooser::candidates())
    selector->told.insert(selector->told.begin(), {choice, us *= 0.8});
  setup.selector = selector;
  Play play(setup);
  const std::uint64_t steps = 60;
  for (std::uint64_t step = 0; step < steps; ++step) {
    if (step == 40) play.scheduler().link_lost(1);
    play.step(step, 0);
  }
  play.finish_all(steps);
  RC_ASSERT(selector->asked > 0);
}

TEST(Switching, RefusesWhatARunningJobCannotBecome) {
  const auto made = make_switching(auto_setup({4096}, 1)).value();
  EXPECT_THAT(made->change_settings({.policy = "knapsack"}).error().message(),
              testing::AllOf(testing::HasSubstr("delays updates"), testing::HasSubstr("DEFT_POLICY=knapsack")));
  EXPECT_THAT(made->change_settings({.policy = "knapsack-paper"}).error().message(),
              testing::HasSubstr("only the simulator"));
  EXPECT_THAT(made->change_settings({.policy = "fife"}).error().message(), testing::HasSubstr("unknown policy 'fife'"));
  EXPECT_THAT(made->change_settings({.policy = "p3", .partition_bytes = 3}).error().message(),
              testing::HasSubstr("partition_bytes is 3"));
  made->bucket_ready(0, 0, 0);
  EXPECT_FALSE(made->take_policy_change()) << "a refusal changes nothing";
  auto setup = auto_setup({4096}, 1);
  setup.policy = "knapsack";
  EXPECT_THAT(make_scheduler(setup).value()->change_settings({.policy = "fifo"}).error().message(),
              testing::HasSubstr("its updates may be delayed"));
}

TEST(Switching, APolicyThatCannotBeMadeIsNotToldToBeInForce) {
  auto setup = auto_setup({1 << 20}, 1);
  setup.no_halves = "this job has none";
  const auto selector = std::make_shared<ToldSelector>();
  selector->told = {{{"dear", 0}, 100}, {PolicyChooser::first_choice(), 900}};
  setup.selector = selector;
  const auto made = make_switching(setup).value();
  model::Profile profile;
  profile.buckets = {{"b0", 1 << 20, 1000, 2000, {}}};
  profile.links = {{"l", 10, {}, 1e6}};
  made->profile_measured(profile, 0, 0);
  EXPECT_EQ(selector->asked, 1);
  made->stage_began(Stage::kBackward, 0, 0, 0);
  EXPECT_FALSE(made->take_policy_change());
  made->bucket_ready(0, 0, 0);
  EXPECT_EQ(made->take_launches(0).front().half, AllReduceHalf::kBoth);
}

TEST(Switching, TellsWhichPolicyIsInForceFromWhichStepOn) {
  const auto made = make_switching(auto_setup({4096}, 1)).value();
  made->stage_began(Stage::kForward, 0, 0, 0);
  ASSERT_TRUE(made->change_settings({.policy = "p3"}));
  EXPECT_FALSE(made->take_policy_change()) << "not before backward";
  made->stage_began(Stage::kBackward, 0, 10, 0);
  const auto change = made->take_policy_change();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->step, 0u);
  EXPECT_EQ(change->choice.policy, "p3");
  EXPECT_EQ(change->reason, "the user set it");
  EXPECT_EQ(change->why, model::PolicyReason::kUser);
  made->bucket_ready(0, 0, 20);
  EXPECT_EQ(made->take_launches(20).front().priority, 0u);
}

TEST(Switching, WhatAPolicyHasMergedEndsWithIt) {
  auto setup = auto_setup({4096, 4096}, 1);
  setup.policy = "mgwfbp";
  const auto made = make_switching(setup).value();
  model::Profile profile;
  profile.buckets = {{"b1", 4096, 10, 10, {}}, {"b0", 4096, 10, 10, {}}};
  profile.links = {{"l", 1000, {}, 100}};
  EXPECT_FALSE(made->take_fusion());
  made->profile_measured(profile, 8, 0);
  const std::vector<BucketIndex> all_together = {0};
  EXPECT_EQ(made->take_fusion().value().starts, all_together);
  ASSERT_TRUE(made->change_settings({.policy = "p3"}));
  made->stage_began(Stage::kBackward, 9, 0, 0);
  const auto ended = made->take_fusion();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->step, 9u);
  EXPECT_TRUE(ended->starts.empty());
  EXPECT_FALSE(made->take_fusion()) << "it is told once";
  ASSERT_TRUE(made->change_settings({.policy = "mgwfbp"}));
  made->stage_began(Stage::kBackward, 10, 0, 0);
  EXPECT_EQ(made->take_fusion().value().starts, all_together) << "it begins with the newest profile";
  EXPECT_FALSE(made->take_fusion());
}

TEST(Switching, AStepBeyondAllCountsDoesNotEndThePolicyBeforeIt) {
  const auto made = make_switching(auto_setup({1 << 20}, 1)).value();
  ASSERT_TRUE(made->change_settings({.policy = "p3"}));
  made->stage_began(Stage::kBackward, std::uint64_t{1} << 44, 0, 0);  // times 2^20 bytes
  made->bucket_ready(0, 0, 10);
  const auto launches = made->take_launches(10);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches.front().half, AllReduceHalf::kBoth);
}

TEST(Switching, SizesChangeAtABorderOfStepsAndTheOldOnesGoOnUntilThen) {
  auto setup = auto_setup({256 << 10, 256 << 10}, 1);
  setup.policy = "bytescheduler";
  setup.partition_bytes = 64 << 10;
  setup.credit_bytes = 64 << 10;
  const auto made = make_switching(setup).value();
  const auto bytes_of_next = [&](BucketIndex bucket, std::uint64_t step) {
    made->bucket_ready(bucket, step, 0);
    std::vector<std::uint64_t> bytes;
    for (auto launches = made->take_launches(0); !launches.empty(); launches = made->take_launches(0)) {
      for (const Launch& launch : launches) bytes.push_back(launch.bytes);
      for (const Launch& launch : launches) made->part_finished(launch, 0);
    }
    return bytes;
  };
  EXPECT_EQ(bytes_of_next(0, 0), std::vector<std::uint64_t>(4, 64 << 10));
  ASSERT_TRUE(made->change_settings({.partition_bytes = 128 << 10}));
  EXPECT_EQ(bytes_of_next(1, 0), std::vector<std::uint64_t>(4, 64 << 10)) << "this step has begun";
  EXPECT_EQ(bytes_of_next(0, 1), std::vector<std::uint64_t>(2, 128 << 10));
  const auto change = made->take_policy_change();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->step, 1u);
  EXPECT_EQ(change->choice.policy, "bytescheduler");
  EXPECT_EQ(change->sizes, (LaunchSizes{128 << 10, 64 << 10}));
  EXPECT_EQ(change->reason, "the user set partition_bytes 131072 and credit_bytes 65536");
  EXPECT_EQ(change->why, model::PolicyReason::kUser);
  bytes_of_next(1, 1);
  ASSERT_TRUE(made->change_settings({.partition_bytes = 128 << 10}));
  bytes_of_next(0, 2);
  EXPECT_FALSE(made->take_policy_change()) << "nothing is different";
}

TEST(Switching, TheCreditBoundsWhatIsInFlight) {
  auto setup = auto_setup({1 << 20}, 1);
  setup.policy = "bytescheduler";
  setup.partition_bytes = 64 << 10;
  setup.credit_bytes = 128 << 10;
  setup.links.front() = {"l", 10, 1e6};
  const auto made = make_switching(setup).value();
  const auto in_flight = [&](std::uint64_t step) {
    made->bucket_ready(0, step, 0);
    std::uint64_t most = 0;
    for (auto launches = made->take_launches(0); !launches.empty(); launches = made->take_launches(0)) {
      most = std::max(most, std::accumulate(launches.begin(), launches.end(), std::uint64_t{0},
                                            [](std::uint64_t sum, const Launch& one) { return sum + one.bytes; }));
      for (const Launch& launch : launches) made->part_finished(launch, 0);
    }
    return most;
  };
  EXPECT_EQ(in_flight(0), 128u << 10);
  ASSERT_TRUE(made->change_settings({.policy = "bytescheduler", .credit_bytes = 512 << 10}));
  EXPECT_EQ(in_flight(1), 512u << 10);
}

// `auto` has sizes of its own until the user sets some.
class UsersSizes : public testing::TestWithParam<std::uint64_t> {};

TEST_P(UsersSizes, ReplaceThoseThatAutoHasChosen) {
  auto setup = auto_setup({1 << 20}, 1);
  setup.partition_bytes = LaunchSizes{}.partition_bytes;
  setup.credit_bytes = LaunchSizes{}.credit_bytes;
  setup.links.front() = {"l", 10, 1e6};
  const auto selector = std::make_shared<ToldSelector>();
  selector->told = {{{"bytescheduler", 0, LaunchSizes{128 << 10, 128 << 10}}, 100},
                    {PolicyChooser::first_choice(), 900}};
  setup.selector = selector;
  const auto made = make_switching(setup).value();
  model::Profile profile;
  profile.buckets = {{"b0", 1 << 20, 1000, 2000, {}}};
  profile.links = {{"l", 10, {}, 1e6}};
  ASSERT_TRUE(made->wants_profile(0));
  made->profile_measured(profile, 0, 0);
  EXPECT_TRUE(selector->last->tunes_sizes);
  const auto first_bytes = [&](std::uint64_t step) {
    made->stage_began(Stage::kForward, step, 0, 0);
    made->stage_began(Stage::kBackward, step, 0, 0);
    made->bucket_ready(0, step, 0);
    std::uint64_t first = 0;
    for (auto launches = made->take_launches(0); !launches.empty(); launches = made->take_launches(0)) {
      if (first == 0) first = launches.front().bytes;
      for (const Launch& launch : launches) made->part_finished(launch, 0);
    }
    return first;
  };
  EXPECT_EQ(first_bytes(0), 128u << 10);
  const auto chosen = made->take_policy_change();
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->sizes, (LaunchSizes{128 << 10, 128 << 10}));
  EXPECT_EQ(to_text(chosen->choice), "bytescheduler (parts 128 KB, credit 128 KB)");
  ASSERT_TRUE(made->change_settings({.partition_bytes = GetParam()}));
  EXPECT_EQ(first_bytes(1), GetParam());
  const auto set = made->take_policy_change();
  ASSERT_TRUE(set);
  EXPECT_EQ(set->sizes, (LaunchSizes{GetParam(), LaunchSizes{}.credit_bytes}));
  EXPECT_EQ(to_text(set->choice), "bytescheduler");
  made->profile_measured(profile, 2, 0);
  EXPECT_FALSE(selector->last->tunes_sizes) << "the user's sizes stay";
}

INSTANTIATE_TEST_SUITE_P(OthersAndTheDefaults, UsersSizes, testing::Values(256 << 10, LaunchSizes{}.partition_bytes));

TEST(Switching, WithoutStagesTheFirstReadyBucketOfAStepIsTheBorder) {
  const auto made = make_switching(auto_setup({4096, 4096}, 1)).value();
  made->bucket_ready(0, 0, 0);
  ASSERT_TRUE(made->change_settings({.policy = "bytescheduler"}));
  made->bucket_ready(1, 0, 0);
  EXPECT_FALSE(made->take_policy_change());
  made->bucket_ready(0, 1, 0);
  EXPECT_EQ(made->take_policy_change()->step, 1u);
}

}  // namespace
}  // namespace deft::sched
