// The Preserver as the leader has it: what it takes from statistics, which plans it chooses, and when it changes its mind.
#include "daemon/plan_preserver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deft::daemon {
namespace {

constexpr TimeUs kPatienceUs = 60'000'000;

model::Plan plan_of(std::vector<model::PlanGeneration> generations) {
  model::Plan plan;
  plan.period_steps = generations.back().last_step + 1;
  plan.generations = std::move(generations);
  return plan;
}

// Merges the fewer steps the more capacity it gets: eight, four, two, one.
struct Planner {
  Result<model::Plan> operator()(const sched::PlanLimits& limits) {
    asked.push_back(limits);
    if (limits.max_staleness_steps == 0 || limits.capacity > 1.5) return plan_of({{0, 0, 1}});
    if (limits.capacity > 1.3) return plan_of({{0, 1, 2}});
    return limits.capacity > 1.1 ? plan_of({{0, 3, 4}}) : plan_of({{0, 7, 8}});
  }
  std::vector<sched::PlanLimits> asked;
};

// Of `ranks` workers: |G|^2 = `gradient`, tr(Sigma) / B = `noise`.
proto::GradientStatistics statistics(std::uint64_t step, double loss, double gradient, double noise,
                                     std::uint32_t ranks = 2, std::uint32_t world = 4) {
  proto::GradientStatistics out;
  out.set_step(step);
  out.set_ranks(ranks);
  out.set_local_norms(ranks * (gradient + noise * world));
  out.set_average_norms(ranks * (gradient + noise));
  out.set_loss(ranks * loss);
  out.set_learning_rate(0.01);
  return out;
}

struct Job {
  PlanPreserver preserver{4, 2, 0.01, kPatienceUs};
  Planner planner;
  std::uint64_t step = 0;

  void tell(double loss, double gradient, double noise = 0, int times = 1) {
    for (int i = 0; i < times; ++i) {
      step += 16;
      for (const std::size_t node : {0, 1}) preserver.take(node, statistics(step, loss, gradient, noise));
    }
  }
  sched::JudgedPlan choose() {
    planner.asked.clear();
    return preserver.choose([this](const sched::PlanLimits& limits) { return planner(limits); }, {}).value();
  }
};

TEST(PlanPreserver, WithoutALossEveryPlanIsFollowedAndItIsSaid) {
  Job job;
  const auto chosen = job.choose();
  EXPECT_EQ(chosen.plan.max_merged(), 8U);
  EXPECT_FALSE(chosen.verdict.judged);
  EXPECT_EQ(job.planner.asked.size(), 1U);
  EXPECT_NE(chosen.verdict.note.find("report_loss"), std::string::npos);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan), "");
  EXPECT_TRUE(job.preserver.statistics().is_null());
}

TEST(PlanPreserver, TellsTheGradientFromItsNoise) {
  Job job;
  job.tell(2.0, 0.5, 0.25);
  const auto json = job.preserver.statistics();
  EXPECT_NEAR(json["gradient"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(json["noise"].get<double>(), 0.25, 1e-12);
  EXPECT_NEAR(json["noise_scale"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(json["loss"].get<double>(), 2.0, 1e-12);
}

TEST(PlanPreserver, WaitsForAllNodesToTellOfTheSameStep) {
  Job job;
  job.preserver.take(0, statistics(16, 2, 0.5, 0));
  job.preserver.take(1, statistics(32, 2, 0.5, 0));
  EXPECT_TRUE(job.preserver.statistics().is_null());
  job.preserver.take(0, statistics(32, 2, 0.5, 0));
  EXPECT_EQ(job.preserver.statistics()["step"], 32);
}

TEST(PlanPreserver, FarFromTheTargetMergingIsAccepted) {
  Job job;
  job.tell(2.0, 0.01);
  const auto chosen = job.choose();
  EXPECT_TRUE(chosen.verdict.judged);
  EXPECT_TRUE(chosen.verdict.accepted);
  EXPECT_EQ(chosen.verdict.attempts, 1U);
  EXPECT_EQ(chosen.plan.max_merged(), 8U);
}

// One step gains 0.5 % of the loss: eight of them as one update would lose 3.4 % of it.
TEST(PlanPreserver, WhatWouldTrainWorseIsMadeAgainWithMoreCapacity) {
  Job job;
  job.tell(2.0, 1.0);
  const auto chosen = job.choose();
  EXPECT_TRUE(chosen.verdict.accepted);
  EXPECT_GT(chosen.verdict.capacity, 1);
  EXPECT_GT(chosen.verdict.attempts, 1U);
  EXPECT_LT(chosen.plan.max_merged(), 8U);
  EXPECT_EQ(chosen.verdict.attempts, job.planner.asked.size());
}

TEST(PlanPreserver, WhereNothingIsAcceptedTheLastPlanIsFollowedAndItIsSaid) {
  Job job;
  job.tell(2.0, 1.0);
  const auto stubborn = [](const sched::PlanLimits&) -> Result<model::Plan> { return plan_of({{0, 7, 8}}); };
  const auto chosen = job.preserver.choose(stubborn, {}).value();
  EXPECT_TRUE(chosen.verdict.judged);
  EXPECT_FALSE(chosen.verdict.accepted);
  EXPECT_EQ(chosen.verdict.attempts, 11U);
  EXPECT_LT(chosen.verdict.ratio, 0.99);
  job.tell(2.0, 1.0);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan), "") << "there is nothing better to change to";
}

TEST(PlanPreserver, WithoutPatienceOnePlanIsTriedAndSaysSo) {
  PlanPreserver hasty(4, 2, 0.01, -1);
  for (const std::size_t node : {0, 1}) hasty.take(node, statistics(16, 2.0, 1.0, 0));
  Planner planner;
  const auto chosen = hasty.choose([&](const sched::PlanLimits& limits) { return planner(limits); }, {}).value();
  EXPECT_EQ(planner.asked.size(), 1U);
  EXPECT_FALSE(chosen.verdict.accepted);
  EXPECT_NE(chosen.verdict.note.find("no time"), std::string::npos);
}

TEST(PlanPreserver, AnImpossiblePlanIsAnErrorAsWithoutAJudge) {
  Job job;
  job.tell(2.0, 1.0);
  const auto fails = [](const sched::PlanLimits&) -> Result<model::Plan> { return fail(ErrorKind::kInvalid, "no"); };
  EXPECT_FALSE(job.preserver.choose(fails, {}));
}

TEST(PlanPreserver, APlanIsGivenUpWhenItHasBecomeWorseAndComesBackWhenItIsClearlyGood) {
  Job job;
  job.tell(2.0, 0.01);
  const auto merged = job.choose().plan;
  job.tell(2.0, 0.02);
  EXPECT_EQ(job.preserver.reconsider(merged), "");
  job.tell(2.0, 1.0, 0, 20);
  EXPECT_NE(job.preserver.reconsider(merged), "");
  const auto careful = job.choose();
  ASSERT_LT(careful.plan.max_merged(), 8U);
  EXPECT_EQ(job.preserver.reconsider(careful.plan), "") << "nothing new was told";

  // The ratio of the plan that was given up: about 1 - 7 eta |G|^2 / loss. Accepted from 0.99 on, taken back from 0.995.
  job.tell(2.0, 0.22, 0, 40);
  EXPECT_EQ(job.preserver.reconsider(careful.plan), "") << "good again, but too close to the bound";
  job.tell(2.0, 0.1, 0, 40);
  EXPECT_NE(job.preserver.reconsider(careful.plan), "");
  EXPECT_EQ(job.choose().plan.max_merged(), 8U);
}

TEST(PlanPreserver, JudgesAPlanThatWasChosenBeforeThereWereStatistics) {
  Job job;
  const auto before = job.choose().plan;
  job.tell(2.0, 1.0);
  EXPECT_NE(job.preserver.reconsider(before), "");
  EXPECT_LT(job.preserver.status()["judgement"]["ratio_now"].get<double>(), 0.99);
}

TEST(PlanPreserver, ALossAtItsTargetIsNotJudged) {
  Job job;
  job.tell(0.0, 1.0);
  const auto chosen = job.choose();
  EXPECT_FALSE(chosen.verdict.judged);
  EXPECT_NE(chosen.verdict.note.find("not above its target"), std::string::npos);
}

TEST(PlanPreserver, AGradientThatDrownsInNoiseIsNotJudgedUntilTheAveragesTellIt) {
  Job job;
  job.tell(2.0, -0.1, 0.2);
  const auto chosen = job.choose();
  EXPECT_FALSE(chosen.verdict.judged);
  EXPECT_NE(chosen.verdict.note.find("from its noise"), std::string::npos);
  EXPECT_EQ(chosen.plan.max_merged(), 1U) << "until it can be judged, nothing is merged";
  EXPECT_EQ(chosen.verdict.max_staleness_steps, 0U);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan), "");
  job.tell(2.0, 0.22, 0.2);
  EXPECT_NEAR(job.preserver.statistics()["gradient"].get<double>(), 0.06, 1e-12);
  EXPECT_NE(job.preserver.reconsider(chosen.plan), "") << "now it can be judged";
  EXPECT_TRUE(job.choose().verdict.judged);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan), "");
}

TEST(PlanPreserver, ImpossibleStatisticsAreCountedAndLeftOut) {
  const auto refused = [](const std::function<void(proto::GradientStatistics&)>& spoil) {
    PlanPreserver preserver(4, 2, 0.01, kPatienceUs);
    auto bad = statistics(16, 2, 0.5, 0.1);
    spoil(bad);
    preserver.take(0, statistics(16, 2, 0.5, 0.1));
    preserver.take(1, bad);
    EXPECT_TRUE(preserver.statistics().is_null());
    return preserver.status()["statistics_refused"].get<int>();
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refused([](auto& s) { s.set_local_norms(kNan); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_local_norms(-1); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_local_norms(1e308), s.set_average_norms(1e308), s.set_loss(-kInfinity); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_average_norms(kInfinity); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_learning_rate(-0.1); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_loss(kNan); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_target(kNan); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_ranks(0); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_ranks(5); }), 1);
  EXPECT_EQ(refused([](auto& s) { s.set_ranks(1); }), 1) << "not all workers of the job";
  PlanPreserver preserver(4, 2, 0.01, kPatienceUs);
  preserver.take(7, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(3, 2, 0.5, 0.1));
  EXPECT_EQ(preserver.status()["statistics_refused"], 3);
}

}  // namespace
}  // namespace deft::daemon
