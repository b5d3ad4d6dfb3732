// Steps of workers that tell their waits, or none.
#include "core/replay/worker_steps.h"

#include <gtest/gtest.h>

namespace deft::replay {
namespace {

// Steps of 30 ms: 5 of forward, 5 of backward, 15 of communication, and 5 in which the script loads data. All of the communication
// hides behind what the worker does, but for 50 us.
trace::NodeTrace hidden_communication(bool tells_waits) {
  trace::NodeTrace trace;
  trace.header = {.job = "j", .host = "h", .ranks = {0}, .links = {"gloo:eth0"}, .options = {{"policy", "fifo"}}};
  trace.groups = {{.group = 0, .name = "g", .tensors = {{"w", 4096, 0}}, .buckets = {{4096, 0, {0}}}}};
  for (std::uint64_t step = 0; step < 8; ++step) {
    const TimeUs at_us = 1'000'000 + static_cast<TimeUs>(step) * 30'000;
    const auto add = [&](TimeUs begin_us, TimeUs end_us, const auto& payload) {
      trace.records.emplace_back(at_us + begin_us, at_us + end_us, payload);
    };
    trace::StageTrace stage{.stage = 1, .step = step, .waited_us = 50, .tells_waits = tells_waits ? 1U : 0U};
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
    EXPECT_EQ(step.waited_us, 50);
    EXPECT_EQ(step.rest_us, 20'000 - 50);
  }
  for (const WorkerStep& step : steps_of(untold, untold.groups[0], 0))
    EXPECT_EQ(step.waited_us, 50 + 15'000) << "it may wait outside Deft";
}

}  // namespace
}  // namespace deft::replay
