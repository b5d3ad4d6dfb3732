// What a worker's steps take it, from the stages that it tells.
#include "core/sched/step_timer.h"

#include <gtest/gtest.h>

namespace deft::sched {
namespace {

// Steps of 10 ms, of which forward takes 4; the worker waits for `waits_us` in each stage.
struct Stages : testing::Test {
  StepTimer time;
  TimeUs now = 5'000'000;

  // How many steps have ended meanwhile.
  int run(std::uint64_t step, TimeUs waits_us = 0, double pace = 1) {
    int ended = time.stage_began(Stage::kForward, step, now, waits_us) ? 1 : 0;
    now += static_cast<TimeUs>(4000 * pace) + waits_us;
    ended += time.stage_began(Stage::kBackward, step, now, waits_us) ? 1 : 0;
    now += static_cast<TimeUs>(6000 * pace) + waits_us;
    return ended;
  }
};

TEST_F(Stages, AStepEndsWhereTheNextOneBegins) {
  EXPECT_EQ(run(0), 0);
  EXPECT_EQ(time.usual_us(), 0);
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(time.ended(), 1u);
  EXPECT_EQ(time.newest_us(), 10'000);
  EXPECT_EQ(time.usual_us(), 10'000);
}

TEST_F(Stages, WaitingIsLeftOut) {
  run(0, 300);
  for (std::uint64_t step = 1; step < 50; ++step) {
    ASSERT_EQ(run(step, 300), 1);
    ASSERT_EQ(time.newest_us(), 10'000);
  }
}

TEST_F(Stages, AStepWhoseEndWasNotSeenDoesNotCount) {
  run(0);
  EXPECT_EQ(run(7), 0);
  EXPECT_EQ(run(3), 0);
  EXPECT_EQ(run(4), 1);
  EXPECT_EQ(time.ended(), 1u);
}

TEST_F(Stages, MoreWaitingThanTimeIsNoTime) {
  time.stage_began(Stage::kForward, 0, 100, 0);
  time.stage_began(Stage::kBackward, 0, 200, 86'400'000'000);
  EXPECT_TRUE(time.stage_began(Stage::kForward, 1, 300, 86'400'000'000));
  EXPECT_EQ(time.newest_us(), 0);
}

TEST_F(Stages, WhatIsSlowForATimeIsNotUsualAndWhatLastsIs) {
  for (std::uint64_t step = 0; step < 40; ++step) run(step);
  for (std::uint64_t step = 40; step < 58; ++step) run(step, 0, 1.5);
  EXPECT_EQ(time.usual_us(), 10'000);
  for (std::uint64_t step = 58; step < 73; ++step) run(step, 0, 1.5);
  EXPECT_EQ(time.usual_us(), 15'000);
  for (std::uint64_t step = 73; step < 86; ++step) run(step);
  EXPECT_EQ(time.usual_us(), 10'000);
}

}  // namespace
}  // namespace deft::sched
