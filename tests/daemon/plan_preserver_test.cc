// The Preserver as the leader has it: what it takes from statistics, which plans it chooses, and when it changes its mind.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "tests/daemon/preserved_job.h"

namespace deft::daemon::preserved {
namespace {

TEST(PlanPreserver, WithoutALossEveryPlanIsFollowedAndItIsSaid) {
  Job job(false);
  const auto chosen = job.choose();
  EXPECT_EQ(chosen.plan.max_merged(), 8U);
  EXPECT_FALSE(chosen.decision.judged);
  EXPECT_EQ(job.planner.asked.size(), 1U);
  EXPECT_NE(chosen.decision.note.find("report_loss"), std::string::npos);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan).reason, "");
  EXPECT_TRUE(job.preserver.statistics().is_null());
}

TEST(PlanPreserver, TellsTheGradientFromItsNoise) {
  Job job;
  job.tell_one(0.5, 0.25);
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
  job.tell(1e-4, 0.01);
  const auto chosen = job.choose();
  EXPECT_TRUE(chosen.decision.judged);
  EXPECT_TRUE(chosen.decision.accepted);
  EXPECT_EQ(chosen.decision.attempts, 1U);
  EXPECT_EQ(chosen.plan.max_merged(), 8U);
}

// One step gains 0.5 % of the loss: eight of them as one update would lose 3.5 % of it.
TEST(PlanPreserver, WhatWouldTrainWorseIsMadeAgainWithMoreCapacity) {
  Job job;
  job.tell(0.01, 1.0);
  const auto chosen = job.choose();
  EXPECT_TRUE(chosen.decision.accepted);
  EXPECT_GT(chosen.decision.capacity, 1);
  EXPECT_GT(chosen.decision.attempts, 1U);
  EXPECT_LT(chosen.plan.max_merged(), 8U);
  EXPECT_EQ(chosen.decision.attempts, job.planner.asked.size());
}

TEST(PlanPreserver, WhereNothingIsAcceptedTheLastPlanIsFollowedAndItIsSaid) {
  Job job;
  job.tell(0.01, 1.0);
  const auto stubborn = [](const plan::PlanLimits&) -> Result<model::Plan> { return plan_of({{0, 7, 8}}); };
  const auto chosen = job.preserver.choose(stubborn, {}).value();
  EXPECT_TRUE(chosen.decision.judged);
  EXPECT_FALSE(chosen.decision.accepted);
  EXPECT_EQ(chosen.decision.attempts, 11U);
  EXPECT_LT(chosen.decision.ratio, 0.99);
  job.tell(0.01, 1.0);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan).reason, "") << "there is nothing better to change to";
}

TEST(PlanPreserver, WithoutPatienceOnePlanIsTriedAndSaysSo) {
  Job job(true, -1);
  job.tell(0.01, 1.0);
  const auto chosen = job.choose();
  EXPECT_EQ(job.planner.asked.size(), 1U);
  EXPECT_FALSE(chosen.decision.accepted);
  EXPECT_NE(chosen.decision.note.find("no time"), std::string::npos);
}

TEST(PlanPreserver, AnImpossiblePlanIsAnErrorAsWithoutAJudge) {
  Job job;
  job.tell(0.01, 1.0);
  const auto fails = [](const plan::PlanLimits&) -> Result<model::Plan> { return fail(ErrorKind::kInvalid, "no"); };
  EXPECT_FALSE(job.preserver.choose(fails, {}));
}

TEST(PlanPreserver, APlanIsGivenUpWhenItHasBecomeWorseAndTriedAgainLaterAndLater) {
  Job job;
  job.tell(1e-4, 0.01, 200);
  const auto merged = job.choose().plan;
  ASSERT_EQ(merged.max_merged(), 8U);
  job.tell(2e-4, 0.01);
  EXPECT_EQ(job.preserver.reconsider(merged).reason, "");
  job.tell(0.02, 1.0, 20);
  EXPECT_NE(job.preserver.reconsider(merged).reason, "");
  const auto careful = job.choose();
  ASSERT_LT(careful.plan.max_merged(), 8U);
  EXPECT_EQ(job.preserver.reconsider(careful.plan).reason, "") << "nothing new was told";

  const auto steps_until_tried = [&job](const model::Plan& in_force) {
    for (int steps = 1; steps < 1000; ++steps) {
      job.tell(0, 0.01, 1);
      if (!job.preserver.reconsider(in_force).reason.empty()) return steps;
    }
    return 1000;
  };
  EXPECT_GE(steps_until_tried(careful.plan), 64);
  const auto again = job.choose().plan;
  EXPECT_GT(again.max_merged(), careful.plan.max_merged());
  job.loss = 2;
  job.tell(0.02, 1.0, 40);
  EXPECT_NE(job.preserver.reconsider(again).reason, "");
  EXPECT_GE(steps_until_tried(job.choose().plan), 128);
}

TEST(PlanPreserver, LateUpdatesUnderWhichTheLossRisesAreTakenBackAtOnce) {
  Job job;
  const auto late = plan_of({{0, 0, 2}});
  const auto make = [&late](const plan::PlanLimits& limits) -> Result<model::Plan> {
    return limits.max_staleness_steps > 0 ? late : plan_of({{0, 0, 1}});
  };
  job.tell(0.01, 0.5, 60);
  ASSERT_EQ(job.preserver.choose(make, {}).value().plan, late);
  job.tell(0, 0.5, 20);
  EXPECT_EQ(job.preserver.reconsider(late).reason, "");
  int samples = 0;
  for (; job.preserver.reconsider(late).reason.empty() && samples < 20; ++samples) {
    job.loss *= 1.05;
    job.tell_one(0.5);
  }
  EXPECT_LE(samples, 8);
  const auto fresh = job.preserver.choose(make, {}).value();
  EXPECT_EQ(fresh.plan.max_staleness(), 0U);
  EXPECT_NE(fresh.decision.note.find("the loss had risen"), std::string::npos);
  job.tell(0.005, 0.5, 60);
  EXPECT_EQ(job.preserver.reconsider(fresh.plan).reason, "");
  EXPECT_EQ(job.preserver.choose(make, {}).value().plan.max_staleness(), 0U) << "whoever asks";
  job.tell(0.005, 0.5, 10);
  EXPECT_NE(job.preserver.reconsider(fresh.plan).reason, "");
  EXPECT_EQ(job.preserver.choose(make, {}).value().plan, late);
}

// What destroyed training at a constant rate of 0.05 with momentum 0.9: everything late, whatever the scatter says.
TEST(PlanPreserver, EverythingLateIsRefusedWhereTheGradientSwings) {
  Job job;
  std::mt19937_64 random(2);
  std::exponential_distribution<> swing(1 / 1.6);
  std::normal_distribution<> normal(0, 0.07);
  for (int i = 0; i < 40; ++i) {
    auto told = statistics(job.step += 4, 0.85 + normal(random), swing(random), 0.5);
    told.learning_rate = 0.5;
    for (const std::size_t node : {0, 1}) job.preserver.take(node, told);
  }
  const auto make = [](const plan::PlanLimits& limits) -> Result<model::Plan> {
    return plan_of({{0, 0, 1 + std::min(1U, limits.max_staleness_steps)}});
  };
  const auto chosen = job.preserver.choose(make, {}).value();
  EXPECT_TRUE(chosen.decision.judged);
  EXPECT_EQ(chosen.plan.max_staleness(), 0U);
}

// Statistics as they were in a training at the edge of stability: the squared gradient scatters by as much as itself,
// the loss by a tenth.
TEST(PlanPreserver, AnswersChangeSeldomInATrainingThatStaysAsItIs) {
  unsigned changes = 0, taken_back = 0, merged = 0;
  std::ostringstream told_of;
  constexpr unsigned kRuns = 20;
  for (unsigned run = 0; run < kRuns; ++run) {
    Job job(false);
    job.loss = 2.3;
    job.tell_one(0.7);
    std::mt19937_64 random(run);
    std::exponential_distribution<> swing(1);
    std::normal_distribution<> normal(0, 0.05);
    auto plan = job.choose().plan;
    while (job.step < 2000) {
      job.step += 8;
      const double loss = 0.4 + 1.9 * std::exp(-0.01 * static_cast<double>(job.step)) + normal(random);
      auto told = statistics(job.step, loss, 0.7 * swing(random), 0.45);
      told.learning_rate = 0.5;
      for (const std::size_t node : {0, 1}) job.preserver.take(node, told);
      const std::string reason = job.preserver.reconsider(plan).reason;
      if (reason.empty()) continue;
      plan = job.choose().plan;
      ++changes;
      taken_back += reason.find("train worse") != std::string::npos;
      told_of << "run " << run << " step " << job.step << ": " << reason << " -> " << plan.max_merged() << "\n";
    }
    merged += plan.max_merged() == 8;
  }
  EXPECT_LE(taken_back, 1.1 * kRuns) << "once, while the loss falls fast\n" << told_of.str();
  EXPECT_LE(changes, 4.2 * kRuns) << "then by steps, as it falls more slowly\n" << told_of.str();
  EXPECT_GE(merged, 0.9 * kRuns) << "the loss hardly falls any more\n" << told_of.str();
}

TEST(PlanPreserver, JudgesAPlanThatWasChosenBeforeThereWereStatistics) {
  Job job(false);
  const auto before = job.choose().plan;
  job.begin();
  job.tell(0.01, 1.0);
  EXPECT_NE(job.preserver.reconsider(before).reason, "");
  EXPECT_LT(job.preserver.status()["judgement"]["ratio_now"].get<double>(), 0.99);
}

TEST(PlanPreserver, ALossAtItsTargetIsNotJudged) {
  Job job;
  job.loss = 0;
  job.tell(0, 1.0);
  const auto chosen = job.choose();
  EXPECT_FALSE(chosen.decision.judged);
  EXPECT_NE(chosen.decision.note.find("not above its target"), std::string::npos);
}

TEST(PlanPreserver, UntilTheFirstFallOfTheLossIsOverNothingIsMerged) {
  Job job(false);
  for (job.loss = 2.3; job.loss > 1.2; job.loss -= 0.05) {
    job.tell_one(0.01);
    const auto chosen = job.choose();
    EXPECT_EQ(chosen.plan.max_merged(), 1U) << job.loss;
    EXPECT_NE(chosen.decision.note.find("only begun"), std::string::npos);
    EXPECT_EQ(job.preserver.reconsider(chosen.plan).reason, "");
  }
  const auto fresh = job.choose().plan;
  job.tell(0, 0.01, 10);
  EXPECT_NE(job.preserver.reconsider(fresh).reason, "");
  EXPECT_EQ(job.choose().plan.max_merged(), 8U);
}

// An optimizer that is no SGD.
TEST(PlanPreserver, TheLossAloneLetsLateUpdatesBeginAfterItsFirstFallAndTakesThemBackWhereItRises) {
  Job job(false);
  job.learning_rate = 0;
  for (job.loss = 4; job.loss > 2.5; job.loss -= 0.1) {
    job.tell_one(0);
    const auto fresh = job.choose();
    EXPECT_EQ(fresh.plan.max_merged(), 1U);
    EXPECT_NE(fresh.decision.note.find("only begun"), std::string::npos);
    EXPECT_EQ(job.preserver.reconsider(fresh.plan).reason, "");
  }
  const auto fresh = job.choose().plan;
  job.loss = 2.5;
  job.tell(0.001, 0, 40);
  EXPECT_NE(job.preserver.reconsider(fresh).reason.find("ready for late updates"), std::string::npos);
  const auto late = job.choose();
  EXPECT_EQ(late.plan.max_merged(), 8U);
  EXPECT_FALSE(late.decision.judged);
  EXPECT_NE(late.decision.note.find("no SGD"), std::string::npos);
  EXPECT_EQ(job.preserver.reconsider(late.plan).reason, "");
  EXPECT_FALSE(job.preserver.statistics().contains("gradient"));

  job.loss = 2.5;
  job.tell_one(0);
  EXPECT_EQ(job.preserver.reconsider(late.plan).reason, "") << "as high as it was";
  job.loss = 3;
  job.tell(0, 0, 6);
  const auto risen = job.preserver.reconsider(late.plan);
  EXPECT_TRUE(risen.immediate);
  EXPECT_NE(risen.reason.find("the loss rose"), std::string::npos);
  const auto back = job.choose();
  EXPECT_EQ(back.plan.max_merged(), 1U);
  EXPECT_NE(back.decision.note.find("the loss had risen"), std::string::npos);
  job.loss = 2.4;
  job.tell(0, 0, 200);
  EXPECT_NE(job.preserver.reconsider(back.plan).reason.find("tried again"), std::string::npos);
  EXPECT_EQ(job.choose().plan.max_merged(), 8U);
}

TEST(PlanPreserver, UntilThereAreEnoughSamplesNothingIsMerged) {
  Job job;
  job.tell(1e-4, 0.2, 3);
  const auto chosen = job.choose();
  EXPECT_FALSE(chosen.decision.judged);
  EXPECT_NE(chosen.decision.note.find("too few samples"), std::string::npos);
  EXPECT_EQ(chosen.plan.max_merged(), 1U);
  EXPECT_EQ(chosen.decision.max_staleness_steps, 0U);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan).reason, "");
  job.tell(1e-4, 0.2, 1);
  EXPECT_NE(job.preserver.reconsider(chosen.plan).reason, "") << "now it can be judged";
  EXPECT_TRUE(job.choose().decision.judged);
  EXPECT_EQ(job.preserver.reconsider(chosen.plan).reason, "");
}

TEST(PlanPreserver, AGradientThatDrownsInNoiseIsNoReasonToRefuse) {
  Job job;
  for (int i = 0; i < 8; ++i) job.tell_one(-0.1, 0.2);
  EXPECT_TRUE(job.choose().decision.accepted);
  EXPECT_FALSE(job.preserver.statistics().contains("noise_scale"));
}

TEST(PlanPreserver, ImpossibleStatisticsAreCountedAndLeftOut) {
  const auto refused = [](const std::function<void(wire::GradientStatistics&)>& spoil) {
    PlanPreserver preserver(4, 2, 0.01, kPatienceUs);
    auto bad = statistics(16, 2, 0.5, 0.1);
    spoil(bad);
    preserver.take(0, statistics(16, 2, 0.5, 0.1));
    preserver.take(1, bad);
    EXPECT_TRUE(preserver.statistics().is_null());
    return preserver.status()["statistics_refused"].get<int>();
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refused([](auto& s) { s.local_norms = kNan; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.local_norms = -1; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.average_norms = kInfinity; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.learning_rate = -0.1; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.target = kNan; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.ranks = 0; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.ranks = 5; }), 1);
  EXPECT_EQ(refused([](auto& s) { s.ranks = 1; }), 1) << "not all workers of the job";
  PlanPreserver preserver(4, 2, 0.01, kPatienceUs);
  preserver.take(7, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(16, 2, 0.5, 0.1));
  preserver.take(0, statistics(3, 2, 0.5, 0.1));
  EXPECT_EQ(preserver.status()["statistics_refused"], 3);
}

}  // namespace
}  // namespace deft::daemon::preserved
