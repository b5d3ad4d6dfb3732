// What replay and explain promise is what comes if a job is mended so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "core/replay/causes.h"
#include "core/replay/explain.h"
#include "core/replay/replay.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;

// The slow node's connections are busy half of the time that the ring takes, and the ring waits for it the longer the more bytes it has.
TEST(Promises, ARingThatWaitsForASlowNicDoesSoForItsBytesAndNotForEachPart) {
  const auto truth = even_profile(6, 800'000, 0.2);
  auto job = traced_simulation(truth, "fifo", {.steps = 30, .nodes = {{}, {}, {}}});
  add_traffic(job, [](std::uint32_t from, std::uint32_t) { return from == 1 ? kRate / 5 : kRate; });
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_LT(measured->profile.links.front().latency_us, 2000) << "of a part that takes 160 ms";
  for (const char* policy : {"p3", "bytescheduler"}) {
    const double truly_us = simulated_us(truth, policy);
    EXPECT_NEAR(replay(*measured, {.policy = policy})->step_us_p50, truly_us, 0.05 * truly_us) << policy;
  }
}

// A fault whose gain is less than the error of replay may not be there at all.
TEST(Promises, WhatReplayErrsByMoreThanACauseSavesIsNoCause) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.002), "fifo", {.steps = 40, .nodes = {{}, {1.3, 0}, {}}});
  const auto sure = explained(job);
  EXPECT_EQ(sure.causes.front().cause, "slow-worker");
  EXPECT_EQ(sure.doubt, "");
  auto measured = measure(job);
  ASSERT_TRUE(measured);
  for (double& us : measured->steps_us) us *= 2;  // something that replay does not know
  const auto unsure = explain(job, *measured);
  ASSERT_TRUE(unsure);
  EXPECT_EQ(unsure->causes.front().cause, "none");
  EXPECT_THAT(unsure->causes.front().what, HasSubstr("nothing is sure"));
  EXPECT_THAT(unsure->doubt, HasSubstr("Replay errs by 50 % with this job"));
}

// What was measured is a share of the measured step, as in the table below it, however long replay takes the step to be.
TEST(Promises, WhatTheDaemonsCostIsAShareOfTheTracedStep) {
  const auto job = traced_simulation(even_profile(4, 400'000, 0.002), "fifo", {.steps = 20, .nodes = {{}, {}}});
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  const TimeShares shares{.compute_us = 60'000, .codec_us = 10'000, .daemon_us = 30'000, .steps = 9};
  const auto causes = costly_stages({job, *measured, 50'000}, shares);
  ASSERT_EQ(causes.size(), 2U);
  EXPECT_DOUBLE_EQ(causes[0].gain_us, 10'000);
  EXPECT_DOUBLE_EQ(causes[0].share, 0.1);
  EXPECT_DOUBLE_EQ(causes[1].gain_us, 30'000);
  EXPECT_DOUBLE_EQ(causes[1].share, 0.3);
}

// Of a damaged file the others' first steps are left: they alone tell how much longer node 0 computes than both others.
TEST(Promises, NodesAreComparedInStepsThatAllOfThemHave) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.002), "fifo",
                               {.steps = 60, .nodes = {{1.4, 0}, {1, 0}, {1.2, 0}}, .overlaps_forward = false});
  const auto cause_of = [](const JobTrace& of) {
    const auto measured = measure(of);
    EXPECT_TRUE(measured);
    const auto causes = slow_workers({of, *measured, replayed_us(*measured)});
    EXPECT_EQ(causes.size(), 1U);
    return causes.front();
  };
  const Cause whole = cause_of(job);
  EXPECT_EQ(whole.what, "node0 computes 17 % longer than the others");
  std::erase_if(job.nodes[2].trace.records, [](const trace::TraceRecord& record) {
    return record.kind() == trace::TraceKind::kStage && record.as<trace::StageTrace>().step > 15;
  });
  const Cause damaged = cause_of(job);
  EXPECT_EQ(damaged.what, whole.what);
  EXPECT_NEAR(damaged.gain_us, whole.gain_us, 500);
  std::erase_if(job.nodes[2].trace.records, [](const trace::TraceRecord& record) {
    return record.kind() == trace::TraceKind::kStage && record.as<trace::StageTrace>().step > 4;
  });
  const auto unknown = explained(job);
  for (const Cause& cause : unknown.causes) EXPECT_NE(cause.cause, "slow-worker") << cause.what;
  EXPECT_THAT(unknown.notes, testing::Contains(HasSubstr("too few to compare its compute")));
}

// The steps of one node have other numbers, so nobody sees which node is slow.
TEST(Promises, NodesThatHaveNoStepsInCommonAreNamed) {
  auto job = traced_simulation(even_profile(12, 400'000, 0.002), "fifo", {.steps = 30, .nodes = {{}, {}, {1.4, 0}}});
  EXPECT_EQ(explained(job).causes.front().cause, "slow-worker");
  EXPECT_THAT(explained(job).notes, testing::Not(testing::Contains(HasSubstr("in common"))));
  for (auto& record : job.nodes[2].trace.records) {
    if (record.kind() != trace::TraceKind::kStage) continue;
    auto stage = record.as<trace::StageTrace>();
    stage.step += 1000;
    record = trace::TraceRecord(record.begin_us(), record.end_us(), stage);
  }
  const auto unknown = explained(job);
  EXPECT_NE(unknown.causes.front().cause, "slow-worker");
  EXPECT_THAT(unknown.notes, testing::Contains(HasSubstr("have 0 whole steps in common, too few to compare")));
}

// Every step takes 100 ms. A transfer ends 20 ms later on node 1, so that begins its next step so much later, and computes no longer.
TEST(Promises, ANodeThatIsLateBecauseItsTransferEndsLaterIsNotSlow) {
  const auto profile = even_profile(1, 8'000'000, 0.005);
  auto job = simulated::empty_job(profile, 2, {{"policy", "fifo"}});
  for (TimeUs n = 0; n < 2; ++n) {
    auto& records = job.nodes[static_cast<std::size_t>(n)].trace.records;
    for (std::uint64_t step = 0; step < 12; ++step) {
      const TimeUs at_us = 1'000'000 + static_cast<TimeUs>(step) * 100'000, own_us = at_us + 20'000 * n;
      records.emplace_back(own_us, own_us,
                           trace::StageTrace{.stage = 1, .step = step, .waited_us = step > 0 ? 60'000U : 0U});
      records.emplace_back(own_us + 20'000, own_us + 20'000, trace::StageTrace{.stage = 2, .step = step});
      records.emplace_back(own_us + 40'000, own_us + 40'000,
                           trace::GradientTrace{.tensors = 1, .generation = step, .last_step = step});
      trace::OrderTrace order{.number = step, .generation = step};
      order.set_bytes(8'000'000);
      records.emplace_back(at_us + 60'000, at_us + 60'000, order);
      records.emplace_back(
          at_us + 60'000, own_us + 100'000,
          trace::TransferTrace{.number = step, .bytes = 8'000'000, .wire_bytes = 8'000'000, .stage = 3});
    }
  }
  const auto shares = time_shares(job);
  EXPECT_NEAR(shares.compute_us, 40'000, 100);
  EXPECT_LT(shares.slow_worker_us, 20'000 / 8) << "of the first step it is not known since when nodes were busy";
  EXPECT_GT(shares.communication_us, 60'000 - 20'000 / 8);
}

// All gradients are one part, so the second NIC carries none of them.
TEST(Promises, ANicThatCarriesNothingIsNamedWithThePartsThatWouldUseIt) {
  const auto truth = even_profile(1, 8'000'000, 0.02, 150, 20'000);
  auto job = traced_simulation(truth, "fifo", {.steps = 30, .nodes = {{}, {}}});
  for (auto& node : job.nodes) node.trace.header.links.push_back("gloo:eth1");
  cut_tensors(job, 20);
  const Cause first = explained(job).causes.front();
  EXPECT_EQ(first.cause, "idle-link") << first.what;
  EXPECT_EQ(first.where, "gloo:eth1");
  EXPECT_THAT(first.what, HasSubstr("gloo:eth1 carried nothing: all gradients are one part; parts of "));
  EXPECT_TRUE(first.options.contains("bucketing") && first.options.contains("partition_bytes"));
  EXPECT_NEAR(first.share, 0.45, 0.08) << "two NICs take half of the time";
}

TEST(Promises, OneNodeSendsNothing) {
  const auto profile = even_profile(12, 400'000, 0.0005);
  const auto measured = measure(traced_simulation(profile, "fifo", {.steps = 20, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  const auto alone = replay(*measured, {.nodes = 1});
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_NEAR(alone->step_us_p50, 60'000, 600);
}

}  // namespace
}  // namespace deft::replay
