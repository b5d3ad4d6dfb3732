// Steps of workers whose gradients come late, and of those that tell their waits or none.
#include "core/replay/worker_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/replay/measured_job.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using testing::HasSubstr;

// READY comes when the GPU's event has passed. The host has then begun the next forward, or even its backward.
TEST(WorkerSteps, GradientsThatComeBehindTheNextForwardBelongToTheirOwnStep) {
  const auto truth = busy_profile();
  auto job = traced_simulation(truth, "fifo", {.steps = 20, .nodes = {{}, {}}});
  const auto on_time = measure(job);
  ASSERT_TRUE(on_time) << on_time.error().message();
  for (auto& node : job.nodes) {
    for (auto& record : node.trace.records)
      if (record.kind() == trace::TraceKind::kGradient)
        record = record.at(record.begin_us() + 34'000, record.end_us() + 34'000);
    std::ranges::stable_sort(node.trace.records, {}, &trace::TraceRecord::begin_us);
  }
  for (const WorkerStep& step : steps_of(job.nodes[0].trace, job.nodes[0].trace.groups[0], 0)) {
    EXPECT_TRUE(step.is_of_host);
    EXPECT_TRUE(step.complete());
    EXPECT_GT(std::ranges::min(step.ready_us), step.ended_us);
    EXPECT_GE(step.rest_us, 0);
  }
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  const auto& buckets = measured->profile.buckets;
  for (std::size_t i = 0; i + 1 < buckets.size(); ++i) EXPECT_NEAR(buckets[i].backward_us, 3000, 2) << i;
  EXPECT_NEAR(buckets.back().backward_us, 37'000, 2) << "the host was so far ahead";
  EXPECT_THAT(measured->problems, testing::ElementsAre(HasSubstr("the stages are those of the host")));
  EXPECT_THAT(on_time->problems, testing::IsEmpty());
}

// Steps of 30 ms: 5 of forward, 5 of backward, 15 of communication, and 5 in which the script loads data. All of the communication
// hides behind what the worker does, but for 20 us.
trace::NodeTrace hidden_communication(bool tells_waits) {
  trace::NodeTrace trace;
  trace.header = {.job = "j", .host = "h", .ranks = {0}, .links = {"gloo:eth0"}, .options = {{"policy", "fifo"}}};
  trace.groups = {{.group = 0, .name = "g", .tensors = {{"w", 4096, 0}}, .buckets = {{4096, 0, {0}}}}};
  for (std::uint64_t step = 0; step < 8; ++step) {
    const TimeUs at_us = 1'000'000 + static_cast<TimeUs>(step) * 30'000;
    const auto add = [&](TimeUs begin_us, TimeUs end_us, const auto& payload) {
      trace.records.emplace_back(at_us + begin_us, at_us + end_us, payload);
    };
    trace::StageTrace stage{.stage = 1, .step = step, .waited_us = 20, .tells_waits = tells_waits ? 1U : 0U};
    add(0, 0, stage);
    stage.stage = 2, stage.waited_us = 0;
    add(5000, 5000, stage);
    add(10'000, 10'000, trace::GradientTrace{.tensors = 1, .generation = step, .last_step = step});
    add(10'000, 25'000,
        trace::TransferTrace{.number = step,
                             .bytes = 4096,
                             .wire_bytes = 4096,
                             .stage = static_cast<std::uint16_t>(trace::TransferStage::kLink)});
  }
  return trace;
}

TEST(WorkerSteps, AWorkerThatTellsItsWaitsHasNoOthers) {
  const auto told = hidden_communication(true), untold = hidden_communication(false);
  const auto steps = steps_of(told, told.groups[0], 0);
  ASSERT_EQ(steps.size(), 5U);
  for (const WorkerStep& step : steps) {
    EXPECT_EQ(step.waited_us, 20);
    EXPECT_EQ(step.rest_us, 20'000 - 20);
  }
  for (const WorkerStep& step : steps_of(untold, untold.groups[0], 0))
    EXPECT_EQ(step.waited_us, 20 + 15'000) << "it may wait outside Deft";
}

}  // namespace
}  // namespace deft::replay
