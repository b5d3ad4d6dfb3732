// Forward that overlaps with communication, and forward that does not.
#include <gtest/gtest.h>

#include "core/replay/replay.h"
#include "tests/replay/even_job.h"

namespace deft::replay {
namespace {

// A worker that clips gradients, or whose framework cannot wait in forward, waits for all updates before it.
TEST(ForwardOverlap, IsThereOnlyIfItWasInTheTrace) {
  const auto truth = busy_profile(0.01);
  const sim::Options before{.steps = 40, .nodes = {{}, {}}, .overlaps_forward = false};
  const auto measured = measure(traced_simulation(truth, "bytescheduler", before));
  const auto overlapped = measure(traced_simulation(truth, "bytescheduler", {.steps = 40, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured && overlapped);
  EXPECT_FALSE(measured->overlaps_forward);
  EXPECT_TRUE(overlapped->overlaps_forward);
  const auto now = replay(*measured, {}), other = replay(*overlapped, {});
  ASSERT_TRUE(now && other);
  EXPECT_NEAR(now->step_us_p50 / now->measured_step_us_p50, 1, 0.05);
  EXPECT_LT(other->step_us_p50, 0.95 * now->step_us_p50);
  EXPECT_NEAR(replay(*measured, {.policy = "p3"})->step_us_p50 / now->step_us_p50, 1, 0.1);
}

// fifo makes all updates before forward. bytescheduler waits within forward, and updates a layer when its gradient has come: so the update
// of a large layer that forward needs early does not hide behind its transfer.
TEST(ForwardOverlap, MovesUpdatesIntoForward) {
  constexpr double kUpdateUs = 20'000;
  auto truth = busy_profile();
  truth.buckets[1].bytes = 4'000'000;
  const auto all_bytes = static_cast<double>(truth.bytes());
  auto measured =
      measure(traced_simulation(truth, "fifo", {.steps = 40, .nodes = {{}, {}}, .overlaps_forward = false}));
  ASSERT_TRUE(measured) << measured.error().message();
  ASSERT_FALSE(measured->overlaps_forward);
  measured->profile = truth;
  measured->profile.buckets.front().forward_us += measured->rest_us = kUpdateUs;
  measured->other_buckets.clear();
  for (auto& bucket : truth.buckets) bucket.forward_us += kUpdateUs * static_cast<double>(bucket.bytes) / all_bytes;
  const auto within = replay(*measured, {.policy = "bytescheduler"});
  ASSERT_TRUE(within) << within.error().message();
  const double us = simulated_us(truth, "bytescheduler");
  EXPECT_NEAR(within->step_us_p50, us, 0.005 * us);
}

}  // namespace
}  // namespace deft::replay
