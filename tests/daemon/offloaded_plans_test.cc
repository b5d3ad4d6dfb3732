// Plans that another thread of the daemon makes.
#include "daemon/leader/offloaded_plans.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "daemon/base/reactor.h"

namespace deft::daemon {
namespace {

plan::GuardedPlan plan_of(std::uint32_t period) {
  plan::GuardedPlan made;
  made.plan.cycles.usual.period_steps = period;
  return made;
}

struct Planning {
  Reactor reactor;
  OffloadedPlans plans{[this](std::function<void()> work, std::function<void()> done) {
    reactor.offload(BlockingWork::kNobody, std::move(work), [this, done = std::move(done)] {
      done();
      reactor.stop();
    });
  }};
};

TEST(OffloadedPlans, AnotherThreadMakesThePlanAndItIsGivenOnce) {
  Planning with;
  EXPECT_FALSE(with.plans.take());
  std::thread::id made_by;
  with.plans.begin([&made_by]() -> Result<plan::GuardedPlan> {
    made_by = std::this_thread::get_id();
    return plan_of(3);
  });
  EXPECT_FALSE(with.plans.take()) << "the loop has not run";
  with.reactor.run();
  EXPECT_NE(made_by, std::this_thread::get_id());
  const auto made = with.plans.take();
  ASSERT_TRUE(made && *made);
  EXPECT_EQ((*made)->plan.cycles.period_steps(), 3U);
  EXPECT_FALSE(with.plans.take());
}

TEST(OffloadedPlans, WhatWasReplacedIsDroppedThoughItEndsLater) {
  Planning with;
  std::promise<void> go_on;
  with.plans.begin([&]() -> Result<plan::GuardedPlan> {
    go_on.get_future().wait();
    return plan_of(1);
  });
  with.plans.begin([]() -> Result<plan::GuardedPlan> { return fail(ErrorKind::kInvalid, "too small"); });
  with.reactor.run();
  const auto newest = with.plans.take();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->error().what, "too small");
  go_on.set_value();
  with.reactor.run();
  EXPECT_FALSE(with.plans.take());
}

}  // namespace
}  // namespace deft::daemon
