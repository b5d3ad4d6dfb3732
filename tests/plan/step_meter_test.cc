// What the step meter makes of a step's stages and buckets.
#include "core/sched/profile_meter.h"

#include <gtest/gtest.h>

namespace deft::sched {
namespace {

const std::vector<model::LinkModel> kLinks = {{"link", 10, 100}};

// Steps of 2 ms forward, 3 ms backward for each of two buckets and 1 ms for the optimizer.
class Worker {
 public:
  explicit Worker(StepMeter& meter) : meter_(meter) {}

  // `merged`: bucket 1 gathers further steps. `forward_wait`: until its updates have come. `pause`: between two steps.
  void step(bool merged = false, TimeUs forward_wait = 0, TimeUs pause = 0) {
    now_ += pause;
    meter_.stage_began(Stage::kForward, step_, now_, waited_);
    now_ += 2 * pace_ + forward_wait;
    meter_.stage_began(Stage::kBackward, step_, now_, forward_wait);
    waited_ = 0;
    now_ += first_ * pace_;
    meter_.bucket_ready(0, step_, now_);
    now_ += (6 - first_) * pace_;
    wait(others_ * pace_);
    if (!merged) meter_.bucket_ready(1, step_, now_);
    now_ += pace_;
    ++step_;
  }
  // The first bucket takes so much of the six ms of backward.
  void first_bucket_takes(TimeUs ms) { first_ = ms; }
  // From the next step on.
  void slow_down(double times) { pace_ = static_cast<TimeUs>(1000 * times); }
  // Another worker of the node is so many ms behind.
  void wait_for_others(TimeUs others_ms) { others_ = others_ms; }
  // Waits as a synchronous optimizer does: after backward.
  void wait(TimeUs us) { now_ += us, waited_ += us; }

 private:
  StepMeter& meter_;
  std::uint64_t step_ = 0;
  TimeUs now_ = 0, waited_ = 0, pace_ = 1000, others_ = 0, first_ = 3;
};

struct Measured : testing::Test {
  StepMeter meter{
      {{"a", 0, 1000, model::DType::kFloat32, 1, 0, 1}, {"b", 1000, 1000, model::DType::kFloat32, 0, 1, 1}}};
  Worker worker{meter};

  void expect_the_step(double times = 1) {
    const auto profile = meter.profile(kLinks);
    ASSERT_TRUE(profile);
    EXPECT_NEAR(profile->compute_us(), 9000 * times, 1);
    EXPECT_NEAR(profile->forward_us(), 3000 * times, 1);               // with the optimizer,
    EXPECT_NEAR(profile->buckets.back().forward_us, 1000 * times, 1);  // which comes before the first bucket's forward
  }
};

TEST_F(Measured, NothingBeforeThereAreEnoughSteps) {
  for (std::size_t i = 0; i + 1 < StepMeter::kComplete; ++i) worker.step();
  EXPECT_FALSE(meter.profile(kLinks));
  worker.step();
  expect_the_step();
}

TEST_F(Measured, WaitingIsNotCompute) {
  for (int i = 0; i < 20; ++i) {
    worker.step(false, 700);
    worker.wait(5000);
  }
  expect_the_step();
}

TEST_F(Measured, APauseBetweenStepsIsNotCompute) {
  for (int i = 0; i < 30; ++i) worker.step(false, 0, i % 10 == 9 ? 60'000'000 : 0);
  expect_the_step();
}

// The one complete step after a pause was once all that was known of the time between steps.
TEST_F(Measured, APauseIsNotComputeWhereStepsAreMergedEither) {
  for (int i = 0; i < 12; ++i) worker.step();
  for (int i = 0; i < 60; ++i) worker.step(i % 3 != 0, 300, i == 33 ? 60'000'000 : 0);
  expect_the_step();
}

// The lower third of a bucket's times counts.
TEST_F(Measured, TheTimesOfBucketsAddUpToThatOfBackwardHoweverTheyVary) {
  for (int i = 0; i < 20; ++i) {
    worker.first_bucket_takes(1 + i % 5);
    worker.step();
  }
  const auto profile = meter.profile(kLinks);
  ASSERT_TRUE(profile);
  EXPECT_NEAR(profile->compute_us(), 9000, 1);
  EXPECT_NEAR(profile->forward_us(), 3000, 1);
}

// A neighbour on the same core, for ten steps or so.
TEST_F(Measured, BurstsOfSlowStepsAreNotCompute) {
  for (int burst = 0; burst < 4; ++burst) {
    worker.slow_down(1);
    for (int i = 0; i < 12; ++i) worker.step();
    worker.slow_down(1.5);
    for (int i = 0; i < 10; ++i) worker.step();
    expect_the_step();
  }
}

TEST_F(Measured, BurstsOfSlowStepsAreNotComputeWhereStepsAreMergedEither) {
  for (int i = 0; i < 200; ++i) {
    worker.slow_down(i % 40 < 18 ? 1.5 : 1);
    worker.step(i % 5 != 0);
    if (i > 40) expect_the_step();
  }
}

// A bucket is ready when the slowest worker of the node has it.
TEST_F(Measured, ASlowerWorkerOfTheNodeCounts) {
  worker.wait_for_others(4);
  for (int i = 0; i < 40; ++i) worker.step();
  worker.slow_down(1.5);
  for (int i = 0; i < 10; ++i) worker.step();
  const auto profile = meter.profile(kLinks);
  ASSERT_TRUE(profile);
  EXPECT_NEAR(profile->compute_us(), 12000, 1);
}

// All wait for it. One that is quicker than this one changes nothing.
TEST_F(Measured, TheSlowestWorkerOfTheJobCounts) {
  for (int i = 0; i < 20; ++i) worker.step();
  meter.slowest_step_measured(18'000);
  expect_the_step(2);
  meter.slowest_step_measured(5000);
  expect_the_step();
}

TEST_F(Measured, WhatLastsIsCompute) {
  for (int i = 0; i < 40; ++i) worker.step();
  worker.slow_down(2);
  for (int i = 0; i < 40; ++i) worker.step();
  expect_the_step(2);
  worker.slow_down(0.5);
  for (int i = 0; i < 12; ++i) worker.step();  // a shorter step is known sooner: it would overload the links
  expect_the_step(0.5);
}

}  // namespace
}  // namespace deft::sched
