#include "core/preserve/preserver.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/plan/planner.h"

namespace deft::preserve {
namespace {

model::Plan plan_of(std::vector<model::PlanGeneration> generations) {
  model::Plan plan;
  plan.cycles.usual.period_steps = generations.back().last_step + 1;
  plan.cycles.usual.generations = std::move(generations);
  return plan;
}

const Walk kWalk{
    .state = 0.2, .target = 0, .learning_rate = 0.01, .gradient_mean = 0.4, .gradient_deviation = 40, .batch = 256};

TEST(Preserver, theOriginalSequenceIsAcceptedWithRatioOne) {
  const auto judgement = judge(plan_of({{0, 0, 1}}), kWalk);
  EXPECT_DOUBLE_EQ(judgement.ratio, 1);
  EXPECT_DOUBLE_EQ(judgement.noise, 1);
  EXPECT_TRUE(judgement.accepted);
}

TEST(Preserver, meansOfMergedStepsLearnLessThanTheirSums) {
  const auto plan = plan_of({{0, 3, 4}});
  EXPECT_LT(judge(plan, kWalk, MergeScale::kMean).ratio, 0.99);
  EXPECT_GT(judge(plan, kWalk, MergeScale::kSum).ratio, judge(plan, kWalk, MergeScale::kMean).ratio);
}

TEST(Preserver, moreMergingIsNeverBetterNearTheTarget) {
  const Walk near{
      .state = 0.02, .target = 0, .learning_rate = 0.02, .gradient_mean = 0.4, .gradient_deviation = 10, .batch = 64};
  double before = 1 + 1e-9;
  for (std::uint32_t k = 1; k <= 8; k *= 2) {
    std::vector<model::PlanGeneration> generations;
    for (std::uint32_t first = 0; first < 8; first += k) generations.push_back({first, first + k - 1, first + k});
    const double ratio = judge(plan_of(generations), near).ratio;
    EXPECT_LE(ratio, before) << k;
    before = ratio;
  }
  EXPECT_LT(before, 0.99);
}

TEST(Preserver, countsTheUpdatesThatAStaleGradientMisses) {
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 0, 1}})), 0);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 0, 2}})), 1);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 0, 4}})), 3);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 1, 2}})), 0);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 1, 3}})), 0.5);  // the first of two steps misses one
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 4, 9}})), 0.8);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 1, 4}})), 1);
  EXPECT_DOUBLE_EQ(staleness_in_updates(plan_of({{0, 1, 3}, {2, 3, 5}})), 0.5);
}

// A plan in which bucket 0, with `bytes` of 100, is merged over two steps and one step late, and all else fresh.
model::Plan partly_late(std::uint64_t bytes) {
  auto plan = plan_of({{0, 0, 1}, {1, 1, 2}});
  plan.cycles.own[0] = {2, {{0, 1, 3}}};
  plan.bucket_bytes = {bytes, 100 - bytes};
  return plan;
}

TEST(Preserver, whatIsLateCountsByItsShareOfTheBytes) {
  EXPECT_DOUBLE_EQ(staleness_in_updates(partly_late(50)), 0.25);
  double before = judge(plan_of({{0, 0, 1}, {1, 1, 2}}), kWalk, MergeScale::kMean).ratio;
  EXPECT_DOUBLE_EQ(before, 1);
  for (const std::uint64_t bytes : {1, 25, 50, 99}) {
    const double ratio = judge(partly_late(bytes), kWalk, MergeScale::kMean).ratio;
    EXPECT_LT(ratio, before) << bytes;
    before = ratio;
  }
  const auto all = judge(plan_of({{0, 1, 3}}), kWalk, MergeScale::kMean);
  EXPECT_NEAR(before, all.ratio, 2e-2 * (1 - all.ratio));
}

// What bench/lateness saw at a constant rate of 0.05 with momentum 0.9, on the walk of those trainings: everything one
// step late ends at chance, the widest matrix with 73 % of the bytes merged over five steps trains as well as ever.
TEST(Preserver, refusesEverythingLateWhereTheWidestMatrixMayBe) {
  const Walk training{.state = 0.85,
                      .target = 0,
                      .learning_rate = 0.5,
                      .gradient_mean = 0.01,
                      .gradient_deviation = 0.005,
                      .batch = 1,
                      .gradient_norm = 1.6};
  EXPECT_DOUBLE_EQ(judge(plan_of({{0, 0, 2}}), training, MergeScale::kMean).ratio, 0);
  EXPECT_TRUE(judge(partly_late(73), training, MergeScale::kMean).accepted);
  auto five = plan_of({{0, 0, 1}, {1, 1, 2}, {2, 2, 3}, {3, 3, 4}, {4, 4, 5}});
  five.cycles.own[0] = {5, {{0, 4, 9}}};
  five.bucket_bytes = {73, 27};
  const auto judgement = judge(five, training, MergeScale::kMean);
  EXPECT_TRUE(std::isfinite(judgement.noise));
}

TEST(Preserver, stalenessOfAPartIsLeftToTheLossWhereThatIsWatched) {
  const Walk steep{
      .state = 0.01, .target = 0, .learning_rate = 0.01, .gradient_mean = 1, .gradient_deviation = 0.1, .batch = 1};
  auto part = plan_of({{0, 0, 1}});
  part.cycles.own[0] = {1, {{0, 0, 2}}};
  part.bucket_bytes = {73, 27};
  EXPECT_FALSE(judge(part, steep).accepted);
  EXPECT_TRUE(judge(part, steep, MergeScale::kSum, 0.01, Staleness::kOfAlmostAllBytes).accepted);
  part.bucket_bytes[0] = 730;  // of 757
  EXPECT_FALSE(judge(part, steep, MergeScale::kSum, 0.01, Staleness::kOfAlmostAllBytes).accepted);
}

TEST(Preserver, refusesStalenessThatDivergesAndAsksForLess) {
  const Walk steep{
      .state = 0.01, .target = 0, .learning_rate = 0.01, .gradient_mean = 1, .gradient_deviation = 0.1, .batch = 1};
  EXPECT_TRUE(std::isinf(judge(plan_of({{0, 0, 5}}), steep).noise));
  const Planner planner = [](const PlanRequest& request) -> Result<model::Plan> {
    return plan_of({{0, 0, 1 + std::min(4U, request.max_staleness_steps)}});
  };
  const auto preserved = preserve(planner, steep);
  ASSERT_TRUE(preserved);
  EXPECT_TRUE(preserved->judgement.accepted);
  EXPECT_EQ(preserved->request.capacity, 1);  // waiting would not help
  EXPECT_LT(preserved->plan.max_staleness(), 4U);
}

TEST(Preserver, givesUpAfterTenMoreAttemptsAndSaysSo) {
  unsigned calls = 0;
  const Planner stubborn = [&](const PlanRequest&) -> Result<model::Plan> { return ++calls, plan_of({{0, 7, 8}}); };
  const auto preserved = preserve(stubborn, kWalk, {}, MergeScale::kMean);
  ASSERT_TRUE(preserved);
  EXPECT_FALSE(preserved->judgement.accepted);
  EXPECT_EQ(preserved->attempts, 11U);
  EXPECT_EQ(calls, 11U);
}

// With the real planner: a coverage that forces merging, and a walk that does not bear it, buys updates with waiting.
TEST(Preserver, moreCapacityBuysMoreUpdates) {
  auto profile = model::read_profile(std::string(DEFT_PROFILES) + "/vgg19_deft_table2.json");
  ASSERT_TRUE(profile);
  profile = model::with_links(*profile, {"nccl"});
  const auto planner = [&](const PlanRequest& request) {
    plan::PlanLimits limits;
    limits.capacity = request.capacity;
    limits.max_staleness_steps = request.max_staleness_steps;
    return plan::find_plan(*profile, limits);
  };
  const auto first = planner({});
  ASSERT_TRUE(first);
  EXPECT_FALSE(judge(*first, kWalk, MergeScale::kMean).accepted);
  const auto preserved = preserve(planner, kWalk, {}, MergeScale::kMean);
  ASSERT_TRUE(preserved);
  EXPECT_TRUE(preserved->judgement.accepted) << preserved->judgement.ratio;
  EXPECT_GT(preserved->plan.updates_per_step(), first->updates_per_step());
  EXPECT_GT(preserved->plan.step_us, first->step_us);
}

TEST(Preserver, namesWhatItCannotJudge) {
  const Planner planner = [](const PlanRequest&) -> Result<model::Plan> { return plan_of({{0, 0, 1}}); };
  const auto says = [&](Walk walk) { return preserve(planner, walk).error().message(); };
  EXPECT_NE(says({}).find("not above its target"), std::string::npos);
  Walk walk = kWalk;
  walk.batch = 0;
  EXPECT_NE(says(walk).find("batch"), std::string::npos);
  walk = kWalk;
  walk.state = NAN;
  EXPECT_NE(says(walk).find("no finite number"), std::string::npos);
  walk = kWalk;
  walk.gradient_mean = -1;
  EXPECT_NE(says(walk).find("statistics"), std::string::npos);
}

}  // namespace
}  // namespace deft::preserve
