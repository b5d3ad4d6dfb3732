// The guard of a setup: which plans the knapsack policy follows, and when it plans anew because of the guard.
#include "core/plan/convergence_guard.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/model/update_schedule.h"
#include "core/sched/profile_meter.h"
#include "core/sched/scheduler.h"

namespace deft::sched {
namespace {

// Accepts plans that are made with at least `capacity`; tries at most `most` of them.
struct NeedsCapacity final : plan::ConvergenceGuard {
  explicit NeedsCapacity(double needed, unsigned tries = 20) : capacity(needed), most(tries) {}

  Choice prepare(const plan::PlanLimits& limits) override {
    ++choices;
    return [limits, needed = capacity, most = most](const Make& make) -> Result<plan::GuardedPlan> {
      plan::PlanLimits asked = limits;
      for (unsigned attempt = 1;; ++attempt, asked.capacity *= 1.15) {
        auto plan = make(asked);
        if (!plan) return tl::unexpected(plan.error());
        const bool accepted = asked.capacity >= needed;
        if (accepted || attempt == most)
          return plan::GuardedPlan{std::move(*plan),
                                   {true, accepted, 0.9, asked.capacity, asked.max_staleness_steps, attempt, {}}};
      }
    };
  }
  void follow(const plan::GuardedPlan&) override { ++followed; }
  plan::ReplanReason reconsider(const model::Plan&) override { return {mind, immediate}; }

  double capacity;
  unsigned most;
  unsigned choices = 0, followed = 0;
  std::string mind;
  bool immediate = false;
};

// Two links' worth of gradients on one, steps of 4 ms: without waiting every second update must be left out.
Setup narrow_setup(std::shared_ptr<plan::ConvergenceGuard> guard) {
  Setup setup;
  setup.policy = "knapsack";
  for (std::uint32_t b = 0; b < 4; ++b)
    setup.buckets.push_back({"b", b * 200'000ULL, 200'000, model::DType::kFloat32, 3 - b, b, 1});
  setup.links.push_back({"link", 10, 100});
  setup.limits.max_generations = 8;
  setup.guard = std::move(guard);
  return setup;
}

// Keeps the work until the test has it done.
struct PatientRunner final : plan::PlanRunner {
  void begin(Work given) override {
    ++begun;
    work = std::move(given);
    made.reset();
  }
  std::optional<Result<plan::GuardedPlan>> take() override { return std::exchange(made, std::nullopt); }
  void finish() { made = work(); }

  Work work;
  std::optional<Result<plan::GuardedPlan>> made;
  unsigned begun = 0;
};

class Driver {
 public:
  explicit Driver(const Setup& setup)
      : buckets_(setup.buckets.size()), scheduler_(measured(make_scheduler(setup).value(), setup)) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i, ++step_) {
      scheduler_->stage_began(Stage::kForward, step_, now_, 0);
      now_ += 2000;
      scheduler_->stage_began(Stage::kBackward, step_, now_, 0);
      for (model::BucketIndex b = 0; b < buckets_; ++b) {
        now_ += 2000 / static_cast<TimeUs>(buckets_);
        scheduler_->bucket_ready(b, step_, now_);
        scheduler_->take_launches(now_);
        if (auto change = scheduler_->take_switch()) switches.push_back(std::move(*change));
      }
    }
  }

  [[nodiscard]] std::uint64_t step() const { return step_; }
  void lose(model::LinkIndex link) { scheduler_->link_lost(link); }

  std::vector<PlanSwitch> switches;

 private:
  std::size_t buckets_;
  std::unique_ptr<Scheduler> scheduler_;
  std::uint64_t step_ = 0;
  TimeUs now_ = 0;
};

TEST(ConvergenceGuard, ARefusedPlanIsMadeAgainWithMoreUpdates) {
  Driver free(narrow_setup(nullptr));
  free.run(12);
  Driver judged(narrow_setup(std::make_shared<NeedsCapacity>(1.5)));
  judged.run(12);
  ASSERT_EQ(free.switches.size(), 1U);
  ASSERT_EQ(judged.switches.size(), 1U);
  EXPECT_FALSE(free.switches[0].decision);
  const PlanSwitch& change = judged.switches[0];
  ASSERT_TRUE(change.decision);
  EXPECT_TRUE(change.decision->accepted);
  EXPECT_GE(change.decision->capacity, 1.5);
  EXPECT_EQ(change.decision->attempts, 4U);
  EXPECT_GT(change.plan.updates_per_step(), free.switches[0].plan.updates_per_step());
  EXPECT_GT(change.plan.step_us, free.switches[0].plan.step_us);
}

TEST(ConvergenceGuard, MoreCapacityLetsUpdatesBeFreshToo) {
  auto setup = narrow_setup(std::make_shared<NeedsCapacity>(2.5));
  setup.limits.fresh_tolerance = 0.05;
  Driver driver(setup);
  driver.run(12);
  ASSERT_EQ(driver.switches.size(), 1U);
  EXPECT_EQ(driver.switches[0].plan.max_staleness(), 0U);
  EXPECT_EQ(driver.switches[0].plan.stale_share(), 0);
  setup.guard = nullptr;
  Driver free(setup);
  free.run(12);
  ASSERT_EQ(free.switches.size(), 1U);
  EXPECT_GT(free.switches[0].plan.stale_share(), 0);
}

TEST(ConvergenceGuard, WhereNoPlanIsAcceptedTheLastIsFollowedAndSaysSo) {
  Driver driver(narrow_setup(std::make_shared<NeedsCapacity>(1000, 3)));
  driver.run(12);
  ASSERT_EQ(driver.switches.size(), 1U);
  ASSERT_TRUE(driver.switches[0].decision);
  EXPECT_FALSE(driver.switches[0].decision->accepted);
  EXPECT_EQ(driver.switches[0].decision->attempts, 3U);
}

TEST(ConvergenceGuard, AChangeOfMindCountsOnlyWhenItIsSeenAgainAndAgain) {
  const auto guard = std::make_shared<NeedsCapacity>(1);
  Driver driver(narrow_setup(guard));
  driver.run(60);
  ASSERT_EQ(driver.switches.size(), 1U);
  EXPECT_EQ(guard->choices, 1U);
  guard->mind = "the loss has fallen";
  guard->capacity = 1.5;
  driver.run(16);  // two looks
  EXPECT_EQ(guard->choices, 1U);
  guard->mind = "";
  driver.run(64);
  EXPECT_EQ(driver.switches.size(), 1U);
  guard->mind = "the loss has fallen";
  driver.run(64);
  ASSERT_EQ(driver.switches.size(), 2U);
  EXPECT_EQ(driver.switches[1].reason, "the loss has fallen");
  EXPECT_GT(driver.switches[1].plan.updates_per_step(), driver.switches[0].plan.updates_per_step());
}

TEST(ConvergenceGuard, WhatIsUrgentCountsAtOnce) {
  const auto guard = std::make_shared<NeedsCapacity>(1);
  Driver driver(narrow_setup(guard));
  driver.run(60);
  ASSERT_EQ(driver.switches.size(), 1U);
  guard->mind = "the loss has risen";
  guard->immediate = true;
  guard->capacity = 1.5;
  driver.run(9);  // one look
  ASSERT_EQ(driver.switches.size(), 2U);
  EXPECT_EQ(driver.switches[1].reason, "the loss has risen");
}

TEST(PlanRunner, StepsGoOnWhileAPlanIsMade) {
  const auto guard = std::make_shared<NeedsCapacity>(1);
  const auto runner = std::make_shared<PatientRunner>();
  auto setup = narrow_setup(guard);
  Driver at_once(setup);
  at_once.run(40);
  setup.plan_runner = runner;
  Driver driver(setup);
  driver.run(40);
  EXPECT_EQ(runner->begun, 1U);
  EXPECT_TRUE(driver.switches.empty());
  EXPECT_EQ(guard->followed, 1U);  // at_once's
  runner->finish();
  driver.run(1);
  ASSERT_EQ(driver.switches.size(), 1U);
  EXPECT_EQ(guard->followed, 2U);
  EXPECT_EQ(driver.switches[0].reason, "the first profile");
  EXPECT_EQ(driver.switches[0].plan, at_once.switches.at(0).plan);
  EXPECT_GT(driver.switches[0].step, driver.step()) << "no worker may have come to it before it hears of the plan";
}

TEST(PlanRunner, ALostLinkReplacesAPlanThatIsNotReady) {
  const auto runner = std::make_shared<PatientRunner>();
  auto setup = narrow_setup(nullptr);
  setup.links.push_back({"other", 10, 100});
  setup.plan_runner = runner;
  Driver driver(setup);
  driver.run(20);
  ASSERT_EQ(runner->begun, 1U);
  runner->finish();
  driver.lose(1);
  driver.run(1);
  EXPECT_EQ(runner->begun, 2U);
  EXPECT_TRUE(driver.switches.empty()) << "that plan counts on the lost link";
  runner->finish();
  driver.run(1);
  ASSERT_EQ(driver.switches.size(), 1U);
  EXPECT_EQ(driver.switches[0].reason, "the loss of link 1");
  EXPECT_LT(driver.switches[0].plan.updates_per_step(), 1);
}

TEST(PlanRunner, APlanThatCannotBeMadeIsAskedForAgain) {
  const auto runner = std::make_shared<PatientRunner>();
  auto setup = narrow_setup(nullptr);
  setup.plan_runner = runner;
  Driver driver(setup);
  driver.run(20);
  runner->made = fail(ErrorKind::kInvalid, "a time is not finite");
  driver.run(2);
  EXPECT_EQ(runner->begun, 2U);
  runner->finish();
  driver.run(1);
  EXPECT_EQ(driver.switches.size(), 1U);
}

TEST(PlanRunner, TheGuardIsNotAskedForItsMindWhileAPlanIsMade) {
  const auto guard = std::make_shared<NeedsCapacity>(1);
  const auto runner = std::make_shared<PatientRunner>();
  auto setup = narrow_setup(guard);
  setup.plan_runner = runner;
  Driver driver(setup);
  guard->mind = "the loss has risen";
  guard->immediate = true;
  driver.run(60);
  EXPECT_EQ(runner->begun, 1U);
  runner->finish();
  driver.run(40);
  EXPECT_EQ(runner->begun, 2U) << "afterwards it is";
}

TEST(ConvergenceGuard, APinnedPlanIsNotJudged) {
  auto setup = narrow_setup(std::make_shared<NeedsCapacity>(1000));
  setup.pinned = model::parse_cycles("0-1@4").value();
  Driver driver(setup);
  driver.run(40);
  ASSERT_EQ(driver.switches.size(), 1U);
  EXPECT_FALSE(driver.switches[0].decision);
}

}  // namespace
}  // namespace deft::sched
