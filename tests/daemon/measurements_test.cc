// What workers measure: told to the leader for all workers of the node together; and the exception boundary of a job.
#include "daemon/node/measurements.h"

#include <gtest/gtest.h>

#include <system_error>

#include "tests/daemon/fake_node.h"

namespace deft::daemon {
namespace {

struct Measured : testing::Test, FakeNode {
  Measurements measurements{members, leader, &scheduler};

  // Steps of the worker, each of them so long.
  void train(std::size_t worker, std::uint64_t steps, TimeUs step_us, std::uint64_t waited_us = 0) {
    for (std::uint64_t step = 0; step <= steps; ++step) {
      const TimeUs begin_us = 1000 + static_cast<TimeUs>(step) * step_us;
      measurements.stage_began(worker, {.stage = 1, .step = step, .waited_us = 0}, begin_us);
      measurements.stage_began(worker, {.stage = 2, .step = step, .waited_us = waited_us}, begin_us + step_us / 2);
    }
  }
  static ipc::Statistics statistics(std::uint64_t step, double loss, double rate) {
    ipc::Statistics statistics;
    statistics.step = step;
    statistics.local_norm = 3;
    statistics.average_norm = 2;
    statistics.loss = loss;
    statistics.learning_rate = rate;
    return statistics;
  }
};

TEST_F(Measured, TheSlowestWorkersStepIsToldEveryFewSteps) {
  train(1, 8, 50'000);
  EXPECT_TRUE(leader.sent.empty()) << "the first worker's steps set the pace of telling";
  train(0, Measurements::kStepsTold, 20'000);
  const auto told = leader.all<wire::StepTime>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_DOUBLE_EQ(told[0].us, 50'000);
}

TEST_F(Measured, WaitingIsNoPartOfAStep) {
  train(0, Measurements::kStepsTold, 20'000, 5'000);
  ASSERT_EQ(leader.all<wire::StepTime>().size(), 1u);
  EXPECT_DOUBLE_EQ(leader.all<wire::StepTime>()[0].us, 15'000);
}

TEST_F(Measured, TimesOfCodecsAreToldWithTheStepsAndOnlyOnce) {
  JobSettings settings = fake_settings();
  settings.codecs.push_back(gradient_codec("int8").value());
  auto codings = std::make_shared<Codings>();
  codings->coded.push_back({settings.codecs[1], {{0, 4096}}});
  Membership coding({"job", 7, 4, 2, "", ""}, settings);
  FakeWorker one{0, 4, 0, 2}, other{1, 4, 1, 2};
  for (auto* worker : {&one, &other}) ASSERT_TRUE(coding.attach(*worker));
  Measurements of_codecs(coding, leader, &scheduler);
  SubCommTask launch;
  launch.codings = codings;
  TransferDone done;
  done.bytes = 16'384;
  done.wire_bytes = 4128;
  done.spans = {{trace::TransferStage::kEncode, 10, 40}, {trace::TransferStage::kDecode, 100, 120}};
  of_codecs.transferred(launch, done);
  for (std::uint64_t step = 0; step <= 2 * Measurements::kStepsTold; ++step)
    of_codecs.stage_began(0, {.stage = 1, .step = step, .waited_us = 0}, static_cast<TimeUs>(1000 * step));
  const auto told = leader.all<wire::StepTime>();
  ASSERT_EQ(told.size(), 2U);
  ASSERT_EQ(told[0].codecs.size(), 1U);
  EXPECT_EQ(told[0].codecs[0].codec, 1);
  EXPECT_EQ(told[0].codecs[0].bytes, 16'384U);
  EXPECT_EQ(told[0].codecs[0].encode_us, 30);
  EXPECT_EQ(told[0].codecs[0].decode_us, 20);
  EXPECT_TRUE(told[1].codecs.empty());
}

TEST_F(Measured, OnlyRankZerosStagesReachTheScheduler) {
  measurements.stage_began(1, {.stage = 1, .step = 4, .waited_us = 0}, 1000);
  EXPECT_TRUE(scheduler.stages.empty());
  measurements.stage_began(0, {.stage = 2, .step = 4, .waited_us = 9}, 1000);
  EXPECT_EQ(scheduler.stages, (std::vector<std::vector<std::uint64_t>>{{2, 4, 9}}));
}

TEST_F(Measured, AnUnknownStageIsIgnoredAndAnAbsurdWaitIsBounded) {
  measurements.stage_began(0, {.stage = 3, .step = 4, .waited_us = 0}, 1000);
  EXPECT_TRUE(scheduler.stages.empty());
  measurements.stage_began(0, {.stage = 1, .step = 4, .waited_us = ~std::uint64_t{0}}, 1000);
  EXPECT_EQ(scheduler.stages[0][2], 86'400'000'000u) << "a day";
}

TEST_F(Measured, StatisticsAreSummedWhenAllWorkersHaveToldThoseOfOneStep) {
  measurements.take(0, statistics(8, 1, 0.1));
  measurements.take(0, statistics(16, 1, 0.1));
  measurements.take(1, statistics(8, 2, 0.3));
  EXPECT_TRUE(leader.sent.empty()) << "steps 16 and 8 are not one step";
  measurements.take(1, statistics(16, 2, 0.3));
  const auto told = leader.all<wire::GradientStatistics>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].step, 16u);
  EXPECT_EQ(told[0].ranks, 2u);
  EXPECT_DOUBLE_EQ(told[0].local_norms, 6);
  EXPECT_DOUBLE_EQ(told[0].average_norms, 4);
  EXPECT_DOUBLE_EQ(told[0].loss, 3);
  EXPECT_DOUBLE_EQ(told[0].learning_rate, 0.3) << "the largest";
}

}  // namespace
}  // namespace deft::daemon
