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

}  // namespace
}  // namespace deft::replay
