// What nodes tell of their codecs' times: the slowest node's price, and the plans that follow it.
#include "daemon/leader/codec_slowdowns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "core/plan/plan_limits.h"
#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kBf16 = 1, kInt8 = 2;

struct Told : testing::Test {
  // The node's codec took so many times the guess.
  void tell(std::size_t node, std::size_t codec, double times, std::uint64_t bytes = 1 << 20) {
    const double us = times * guessed[codec] * static_cast<double>(bytes);
    const std::vector<wire::CodecTime> told{{static_cast<model::CodecIndex>(codec), bytes, us / 4, us * 3 / 4}};
    slowdowns.take(node, told);
  }
  void tell_often(std::size_t node, std::size_t codec, double times, std::size_t messages = CodecSlowdowns::kKept) {
    for (std::size_t i = 0; i < messages; ++i) tell(node, codec, times);
  }
  // Messages of both nodes without this codec.
  void pass(std::uint64_t messages) {
    for (std::uint64_t i = 0; i < 2 * messages; ++i) slowdowns.take(i % 2, {});
  }

  const std::vector<double> guessed{0, 1e-4, 2e-4};
  CodecSlowdowns slowdowns{2, guessed};
};

TEST_F(Told, AGuessStaysUntilTwoValuesOfEnoughBytesAreThere) {
  EXPECT_EQ(slowdowns.of(kInt8).times, 1);
  EXPECT_FALSE(slowdowns.of(kInt8).node);
  tell(0, kInt8, 3);
  for (int i = 0; i < 3; ++i) tell(0, kInt8, 3, CodecSlowdowns::kLeastBytes / 4);
  EXPECT_EQ(slowdowns.of(kInt8).times, 1);
  tell(0, kInt8, 3, CodecSlowdowns::kLeastBytes / 4);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 3);
  EXPECT_TRUE(slowdowns.of(kInt8).is_measured);
}

TEST_F(Told, TheSlowestNodeCounts) {
  tell_often(0, kInt8, 2);
  EXPECT_EQ(slowdowns.of(kInt8).node, 0U);
  tell_often(1, kInt8, 5);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 5);
  EXPECT_EQ(slowdowns.of(kInt8).node, 1U);
  tell_often(1, kInt8, 0.5);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 2);
  tell_often(0, kInt8, 0.7);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 0.7) << "the guess was too high";
}

TEST_F(Told, ADisturbanceOfEverySecondMessageDoesNotCount) {
  for (int i = 0; i < 50; ++i) tell(0, kInt8, i % 2 == 0 ? 1.5 : 40);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 1.5);
}

TEST_F(Told, WhatANodeSaysIsKeptWithinReason) {
  tell_often(0, kInt8, 1e9);
  EXPECT_EQ(slowdowns.of(kInt8).times, CodecSlowdowns::kMostTimes);
  tell_often(0, kInt8, 0);
  EXPECT_EQ(slowdowns.of(kInt8).times, CodecSlowdowns::kLeastTimes);
}

TEST_F(Told, ACodecThatNobodyHasUsedIsAsMuchSlowerAsTheLeastSlowOfTheOthers) {
  CodecSlowdowns of_three(2, {0, 1e-4, 2e-4, 3e-4});
  const auto told = [&](std::size_t node, model::CodecIndex codec, double us) {
    for (int i = 0; i < 2; ++i) of_three.take(node, std::vector<wire::CodecTime>{{codec, 1'000'000, us, 0}});
  };
  told(0, 1, 300);
  EXPECT_DOUBLE_EQ(of_three.of(3).times, 3);
  EXPECT_FALSE(of_three.of(3).is_measured);
  told(0, 2, 400);
  EXPECT_DOUBLE_EQ(of_three.of(3).times, 2) << "it will be used, and measured";
  EXPECT_DOUBLE_EQ(of_three.of(1).times, 3);
  told(1, 2, 1000);
  EXPECT_DOUBLE_EQ(of_three.of(3).times, 5) << "the other node is slower";
  EXPECT_EQ(of_three.of(3).node, 1U);
  told(0, 3, 2400);
  told(1, 3, 300);
  EXPECT_DOUBLE_EQ(of_three.of(3).times, 8);
  EXPECT_TRUE(of_three.of(3).is_measured);
}

TEST_F(Told, ACodecWhoseTimesStagesDoNotTellIsNeverMeasured) {
  CodecSlowdowns unknown(1, {0, 0});
  for (int i = 0; i < 9; ++i) unknown.take(0, std::vector<wire::CodecTime>{{1, 1 << 20, 99, 99}});
  EXPECT_EQ(unknown.of(1).times, 1);
}

// Nothing uses a codec that costs too much. So its price must not stay for ever.
TEST_F(Told, ACodecThatIsNotUsedIsTriedAgainEachTimeLater) {
  for (const std::uint64_t patience : {1, 2, 4}) {
    tell_often(1, kInt8, 5, 4);
    pass(patience * CodecSlowdowns::kPatience - 1);
    EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 5) << patience;
    pass(1);
    EXPECT_EQ(slowdowns.of(kInt8).times, 1) << patience;
  }
  tell_often(1, kInt8, 1, 2 * CodecSlowdowns::kKept);
  pass(CodecSlowdowns::kPatience);
  EXPECT_FALSE(slowdowns.of(kInt8).node) << "it was in use for long, so the next time is the first one";
}

TEST_F(Told, ANodeThatTellsNothingMoreIsForgotten) {
  tell_often(1, kInt8, 5);
  for (std::uint64_t i = 0; i < 2 * CodecSlowdowns::kPatience; ++i) tell(0, kInt8, 2);
  EXPECT_DOUBLE_EQ(slowdowns.of(kInt8).times, 2);
  EXPECT_EQ(slowdowns.of(kInt8).node, 0U);
}

// --- Plans ---

// Two nodes train in steps of 100 ms, and one link would carry exact gradients in 160 ms and int8 in 48 ms. The nodes tell their times as
// in training: every fourth step, of the codecs that launches had.
class TwoNodes {
 public:
  TwoNodes() : scheduler_(sched::measured(sched::make_scheduler(setup_).value(), setup_)) {}

  void train(int steps) {
    for (const int end = step_ + steps; step_ < end; ++step_) {
      begin(sched::Stage::kForward);
      now_ += 30'000;
      begin(sched::Stage::kBackward);
      for (model::BucketIndex bucket = 0; bucket < setup_.buckets.size(); ++bucket) {
        now_ += 7'000;
        scheduler_->bucket_ready(bucket, static_cast<std::uint64_t>(step_), now_);
        take();
      }
      if (step_ % 4 == 3) tell();
    }
  }

  [[nodiscard]] std::size_t encoded_buckets() const {
    const auto& codecs = plans_.back().plan.codecs;
    return codecs.size() - static_cast<std::size_t>(std::ranges::count(codecs, model::CodecIndex{0}));
  }
  [[nodiscard]] const std::vector<sched::PlanSwitch>& plans() const { return plans_; }

  // [node], times the guess; and each message differs by so much.
  std::vector<double> slowness{1, 1};
  double jitter = 0;
  std::mt19937 random{1};

 private:
  static sched::Setup setup() {
    sched::Setup setup;
    setup.policy = "knapsack";
    for (std::uint32_t b = 0; b < 10; ++b) {
      setup.buckets.push_back({"b", b * 8'000'000, 8'000'000, model::DType::kFloat32, 9 - b, b, 1});
      setup.buckets.back().coded_bytes = 8'000'000;
    }
    setup.links = {{"link", 10, 500}};
    setup.limits = plan::training_limits();
    setup.limits.max_staleness_steps = 0;
    setup.codecs = {{},
                    {.name = "bf16", .wire_share = 0.5, .encode_us_per_byte = 4.5e-4, .error = 3e-6},
                    {.name = "int8", .wire_share = 0.25, .encode_us_per_byte = 6e-4, .error = 5e-5}};
    return setup;
  }

  void begin(sched::Stage stage) {
    scheduler_->stage_began(stage, static_cast<std::uint64_t>(step_), now_, 0);
    take();
  }
  void take() {
    if (auto change = scheduler_->take_switch()) plans_.push_back(*std::move(change));
    for (auto launches = scheduler_->take_launches(now_); !launches.empty(); launches = scheduler_->take_launches(now_))
      for (const auto& launch : launches) {
        encoded_[launch.codec] += launch.bytes;
        scheduler_->part_finished(launch, now_);
      }
  }
  void tell() {
    std::uniform_real_distribution<double> noise(1 - jitter, 1 + jitter);
    for (std::size_t node = 0; node < 2; ++node) {
      std::vector<wire::CodecTime> times;
      for (model::CodecIndex codec = 1; codec < setup_.codecs.size(); ++codec)
        if (const std::uint64_t bytes = encoded_[codec]; bytes > 0)
          times.push_back(
              {codec, bytes,
               slowness[node] * noise(random) * setup_.codecs[codec].encode_us_per_byte * static_cast<double>(bytes),
               0});
      slowdowns_.take(node, times);
    }
    encoded_.assign(3, 0);
    auto prices = setup_.codecs;
    for (std::size_t codec = 1; codec < prices.size(); ++codec)
      prices[codec].encode_us_per_byte *= slowdowns_.of(codec).times;
    scheduler_->codecs_measured(prices);
  }

  const sched::Setup setup_ = setup();
  std::unique_ptr<sched::Scheduler> scheduler_;
  CodecSlowdowns slowdowns_{2, {0, 4.5e-4, 6e-4}};
  std::vector<std::uint64_t> encoded_ = std::vector<std::uint64_t>(3);  // [codec]: bytes since the last message
  std::vector<sched::PlanSwitch> plans_;
  TimeUs now_ = 0;
  int step_ = 0;
};

TEST(CodecPlans, ANodeThatEncodesSlowlyMakesThemExactUntilItIsQuickAgain) {
  TwoNodes job;
  job.train(100);
  ASSERT_EQ(job.plans().size(), 1U);
  EXPECT_GT(job.encoded_buckets(), 0U);
  job.slowness[1] = 5;
  job.train(100);
  ASSERT_GE(job.plans().size(), 2U);
  EXPECT_NE(job.plans().back().reason.find("the time of codec"), std::string::npos) << job.plans().back().reason;
  EXPECT_EQ(job.encoded_buckets(), 0U) << "exact gradients are quicker";
  job.slowness[1] = 1;
  job.train(300);
  EXPECT_GT(job.encoded_buckets(), 0U) << "the codec was tried again";
  const std::size_t plans = job.plans().size();
  job.train(500);
  EXPECT_EQ(job.plans().size(), plans) << "and stays";
}

TEST(CodecPlans, ANodeThatStaysSlowIsNotTriedOften) {
  TwoNodes job;
  job.slowness[1] = 5;
  job.train(3000);
  EXPECT_LE(job.plans().size(), 14U) << "first, and then after 128, 256, 512, ... steps";
}

TEST(CodecPlans, TimesThatVaryByAFifthMakeNoNewPlan) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    TwoNodes job;
    job.random.seed(seed);
    job.jitter = 0.2;
    job.train(500);
    EXPECT_EQ(job.plans().size(), 1U) << seed << ": " << job.plans().back().reason;
  }
}

}  // namespace
}  // namespace deft::daemon
