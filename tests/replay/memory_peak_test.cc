#include "core/replay/memory_peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/partition/rebucket.h"
#include "core/replay/replay.h"
#include "tests/replay/traced_simulation.h"

namespace deft::replay {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::MemoryPart;
using trace::MemoryTrace;

constexpr std::uint32_t kNone = MemoryTrace::kNoLayer;

MemoryTrace amount(MemoryPart part, std::uint32_t begin, std::uint32_t end, std::uint64_t bytes, std::uint64_t growing,
                   std::uint32_t input_of = kNone) {
  return {.part = static_cast<std::uint16_t>(part),
          .begin = begin,
          .end = end,
          .input_of = input_of,
          .bytes = bytes,
          .growing = growing};
}

// Three layers: forward is 1 to 3, the loss 4, backward 5 to 7, the update 8.
StepMemory three_layers() {
  StepMemory memory{.samples = 8, .gradient_bytes = 90};
  memory.layers = {{"in", 100, 800'000, 30}, {"blocks.0", 200, 400'000, 60}, {"blocks.1", 300, 0, 90}};
  memory.amounts = {
      amount(MemoryPart::kWeights, 0, 9, 100, 0),        amount(MemoryPart::kOptimizer, 0, 9, 110, 0),
      amount(MemoryPart::kArena, 0, 9, 90, 0),           amount(MemoryPart::kInputs, 0, 9, 5, 5, 0),
      amount(MemoryPart::kActivations, 1, 6, 10, 10, 1), amount(MemoryPart::kActivations, 2, 5, 20, 20, 2),
      amount(MemoryPart::kActivations, 2, 6, 40, 40),    amount(MemoryPart::kActivations, 3, 5, 30, 30),
      amount(MemoryPart::kTemporary, 2, 2, 70, 70),      amount(MemoryPart::kTemporary, 4, 4, 7, 7),
      amount(MemoryPart::kTemporary, 5, 5, 50, 50),      amount(MemoryPart::kTemporary, 6, 6, 60, 20),
  };
  return memory;
}

std::vector<double> totals(const MemoryWhatIf& what_if) {
  std::vector<double> totals;
  for (const auto& use : memory_uses(three_layers(), what_if)) totals.push_back(use.total());
  return totals;
}

TEST(MemoryPeak, AddsUpWhatIsThereInEachPosition) {
  EXPECT_THAT(totals({}), testing::ElementsAre(300, 305, 385, 375, 412, 405, 365, 305, 305, 300));
  const auto peak = memory_peak(three_layers(), {});
  EXPECT_EQ(peak.position, 4U);
  EXPECT_EQ(peak.use.total(), 412);
  EXPECT_EQ(peak.use.of(MemoryPart::kActivations), 100);
  EXPECT_EQ(peak.use.of(MemoryPart::kTemporary), 7);
  EXPECT_EQ(peak.use.of(MemoryPart::kInputs), 5);
}

TEST(MemoryPeak, GrowsWithTheBatchAsFarAsItDoes) {
  EXPECT_EQ(memory_peak(three_layers(), {.batch = 2}).use.total(), 300 + 2 * 112);
  const auto halved = totals({.batch = 0.5});
  EXPECT_EQ(halved[4], 300 + 112 / 2.0);
  EXPECT_EQ(halved[6], 300 + 40 + (20 + 5) / 2.0) << "40 bytes of the temporary do not grow";
}

// While gradients are added up they lie outside the arena. In the last of two passes each goes with its layer's backward.
TEST(MemoryPeak, SeveralPassesHoldGradientsBesideTheArena) {
  const auto two = totals({.passes = 2});
  EXPECT_EQ(two[4], 300 + 112 / 2.0 + 90);
  EXPECT_EQ(two[5], 300 + 105 / 2.0 + 90);
  EXPECT_EQ(two[6], 300 + 40 + 25 / 2.0 + 60);
  EXPECT_EQ(two[7], 300 + 5 / 2.0 + 60) << "in the first pass two layers' gradients are there by now";
  const auto four = totals({.passes = 4});
  EXPECT_EQ(four[6], 300 + 40 + 25 / 4.0 + 90);
}

TEST(MemoryPeak, RecomputationFreesWhatOnlyTheRangeNeeds) {
  const auto uses = totals({.recomputed = {{1, 1}}});
  EXPECT_EQ(uses[4], 412 - 40) << "its output stays, because the next layer has it as its input";
  EXPECT_EQ(uses[5], 405 - 40);
  // At its backward its forward is repeated: 300 for good, the batch, its input, what it makes, and its output's gradient.
  EXPECT_EQ(uses[6], 300 + 5 + 10 + 70 + 20);
  EXPECT_EQ(uses[7], 305);
}

TEST(MemoryPeak, RecomputingEverythingKeepsInputsAlone) {
  const auto uses = totals({.recomputed = {{0, 2}}});
  EXPECT_EQ(uses[4], 300 + 5 + 7);
  EXPECT_GE(uses[5], 412 - 7) << "all of it is made again, at once";
}

TEST(MemoryPeak, TheInputOfARangeIsKept) {
  auto memory = three_layers();
  memory.amounts.push_back(amount(MemoryPart::kActivations, 1, 3, 1000, 1000, 1));  // it dies when layer 1 has used it
  EXPECT_EQ(memory_uses(memory, {})[4].total(), 412);
  EXPECT_EQ(memory_uses(memory, {.recomputed = {{1, 1}}})[4].total(), 412 - 40 + 1000);
}

TEST(MemoryPeak, PositionsHaveNames) {
  const auto memory = three_layers();
  EXPECT_EQ(memory.describe(2), "forward of blocks.0");
  EXPECT_EQ(memory.describe(memory.loss()), "the loss");
  EXPECT_EQ(memory.describe(memory.backward(2)), "backward of blocks.1");
  EXPECT_EQ(memory.describe(memory.update()), "the update");
}

model::Profile profile_of_three() {
  model::Profile profile;
  for (int i = 0; i < 3; ++i) profile.buckets.push_back({"b" + std::to_string(2 - i), 400'000, 1000, 2000, {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 150, .relative_time = {}, .bytes_per_us = 500});
  return profile;
}

TEST(MemoryTimes, ComputeGrowsWithTheBatchButNotTheRest) {
  const auto profile = with_memory(profile_of_three(), 400, nullptr, {.batch = 2});
  EXPECT_DOUBLE_EQ(profile.buckets[0].forward_us, 2 * 600 + 400);
  EXPECT_DOUBLE_EQ(profile.buckets[1].forward_us, 2000);
  EXPECT_DOUBLE_EQ(profile.compute_us(), 2 * (9000 - 400) + 400);
}

TEST(MemoryTimes, PassesTakeAsLongTogether) {
  const auto profile = with_memory(profile_of_three(), 0, nullptr, {.passes = 4});
  EXPECT_DOUBLE_EQ(profile.buckets[0].backward_us, 500);
  EXPECT_DOUBLE_EQ(profile.buckets[0].forward_us, 250);
  EXPECT_DOUBLE_EQ(profile.buckets[2].forward_us, 250 + 3 * 2250) << "before the last backward";
  EXPECT_DOUBLE_EQ(profile.compute_us(), 9000);
}

TEST(MemoryTimes, RepeatedForwardsComeBeforeTheirGradients) {
  const auto memory = three_layers();
  const auto profile = with_memory(profile_of_three(), 0, &memory, {.recomputed = {{1, 2}}});
  EXPECT_DOUBLE_EQ(profile.buckets[2].backward_us, 2000 + 200 + 300);
  EXPECT_DOUBLE_EQ(profile.compute_us(), 9500);
}

TEST(MemoryTimes, RepeatedForwardsComeBeforeTheirGradientsWhateverTheBucketsAre) {
  const auto memory = three_layers();
  const auto finer = partition::rebucket(profile_of_three(), "uniform:200704");
  ASSERT_TRUE(finer);
  ASSERT_EQ(finer->buckets.size(), 6U);
  const auto profile = with_memory(*finer, 0, &memory, {.recomputed = {{0, 0}}});
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(profile.buckets[i].backward_us - finer->buckets[i].backward_us, i == 2 ? 100 : 0, 1e-9) << i;
}

// What a worker tells, as records of its node's trace.
void tell(trace::NodeTrace& node, std::uint32_t worker, const StepMemory& memory) {
  const TimeUs at_us = node.records.back().begin_us();
  for (std::uint32_t i = 0; i < memory.layers.size(); ++i)
    node.records.emplace_back(
        at_us, at_us,
        trace::LayerTrace{.worker = worker, .layer = i, .tensor = 2 - i, .forward_ns = 1000 * (i + std::uint64_t{1})});
  for (MemoryTrace amount : memory.amounts) {
    amount.worker = worker;
    node.records.emplace_back(at_us, at_us, amount);
  }
  node.records.emplace_back(at_us, at_us,
                            trace::MemoryStepTrace{.worker = worker,
                                                   .layers = static_cast<std::uint32_t>(memory.layers.size()),
                                                   .amounts = static_cast<std::uint32_t>(memory.amounts.size()),
                                                   .samples = memory.samples,
                                                   .step = 4});
}

JobTrace traced_job() {
  auto job = traced_simulation(profile_of_three(), "fifo", {.steps = 12, .nodes = {{}, {}}});
  for (auto& node : job.nodes) tell(node.trace, 0, three_layers());
  return job;
}

TEST(StepMemory, IsReadFromTheTraceOfEachWorker) {
  const auto measured = measure(traced_job());
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_THAT(measured->problems, IsEmpty());
  ASSERT_EQ(measured->memories.size(), 2U);
  const StepMemory& second = measured->memories[1];
  EXPECT_EQ(second.rank, 1U);
  EXPECT_EQ(second.samples, 8U);
  EXPECT_EQ(second.gradient_bytes, 1'200'000U);
  ASSERT_EQ(second.layers.size(), 3U);
  EXPECT_EQ(second.layers[0].left_bytes, 400'000U) << "backward produces its tensor last";
  EXPECT_EQ(second.layers[2].first_byte, 0U);
  EXPECT_NEAR(static_cast<double>(second.layers[1].first_byte), 400'000, 1024) << "tensors are aligned";
  EXPECT_DOUBLE_EQ(second.layers[1].forward_us, 2);
  EXPECT_EQ(memory_peak(second, {}).use.total(), 412);
}

TEST(StepMemory, WhatIsNotCompleteOrNotPossibleIsLeftOutAndNamed) {
  const auto spoil = [](const auto& change) {
    auto job = traced_job();
    change(job.nodes[1].trace.records);
    const auto measured = measure(job);
    ASSERT_TRUE(measured);
    EXPECT_EQ(measured->memories.size(), 1U);
    EXPECT_THAT(measured->problems, Contains(HasSubstr("rank 1")));
  };
  spoil([](auto& records) { records.pop_back(); });                // no end
  spoil([](auto& records) { records.erase(records.end() - 2); });  // an amount is missing
  spoil([](auto& records) { std::swap(records.back(), *(records.end() - 2)); });
  const auto replace_amount = [&](const MemoryTrace& with) {
    spoil([&](auto& records) { *(records.end() - 2) = {records.back().begin_us(), records.back().begin_us(), with}; });
  };
  replace_amount(amount(MemoryPart::kActivations, 3, 2, 1, 0));     // it ends before it begins
  replace_amount(amount(MemoryPart::kActivations, 3, 10, 1, 0));    // beyond the step
  replace_amount(amount(MemoryPart::kActivations, 3, 5, 1, 2));     // more grows than there is
  replace_amount(amount(MemoryPart::kActivations, 3, 5, 1, 0, 3));  // of a layer that is none
  replace_amount(amount(MemoryPart::kTemporary, 3, 5, 1, 0));
  replace_amount(amount(MemoryPart::kActivations, 3, 5, ~std::uint64_t{0}, 0));
}

TEST(StepMemory, OfSeveralTheNewestCounts) {
  auto job = traced_job();
  auto larger = three_layers();
  larger.amounts.front().bytes += 1000;
  tell(job.nodes[0].trace, 0, larger);
  const auto measured = measure(job);
  ASSERT_TRUE(measured);
  EXPECT_EQ(memory_peak(measured->memories.front(), {}).use.total(), 1412);
}

TEST(StepMemory, TracesWithoutItAreReadAsBefore) {
  const auto measured = measure(traced_simulation(profile_of_three(), "fifo", {.steps = 12, .nodes = {{}, {}}}));
  ASSERT_TRUE(measured);
  EXPECT_THAT(measured->memories, IsEmpty());
  EXPECT_THAT(measured->problems, IsEmpty());
}

TEST(ReplayedMemory, PassesHideLessCommunication) {
  auto profile = profile_of_three();
  profile.links.front().bytes_per_us = 200;  // 2.15 ms a bucket, which backward hides but for the last
  auto job = traced_simulation(profile, "fifo", {.steps = 20, .nodes = {{}, {}}});
  for (auto& node : job.nodes) tell(node.trace, 0, three_layers());
  const auto measured = measure(job);
  ASSERT_TRUE(measured) << measured.error().message();
  const auto now = replay(*measured, {});
  const auto four = replay(*measured, {.memory = {.passes = 4}});
  const auto again = replay(*measured, {.memory = {.recomputed = {{0, 2}}}});
  const auto twice = replay(*measured, {.memory = {.batch = 2}});
  ASSERT_TRUE(now && four && again && twice);
  EXPECT_NEAR(four->compute_us, now->compute_us, 1);
  EXPECT_GT(four->step_us_p50, now->step_us_p50 + 1000);
  EXPECT_NEAR(again->compute_us, now->compute_us + 6, 0.1);
  EXPECT_GT(twice->compute_us, 1.8 * now->compute_us);
  for (const MemoryWhatIf& wrong : {MemoryWhatIf{.batch = 0}, MemoryWhatIf{.passes = 0},
                                    MemoryWhatIf{.recomputed = {{0, 3}}}, MemoryWhatIf{.recomputed = {{2, 1}}}})
    EXPECT_FALSE(replay(*measured, {.memory = wrong}));
}

}  // namespace
}  // namespace deft::replay
