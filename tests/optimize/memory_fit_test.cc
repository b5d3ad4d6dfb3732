#include "core/optimize/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/optimize/model_cuts.h"
#include "core/optimize/search.h"
#include "core/replay/replay.h"
#include "tests/replay/traced_simulation.h"

namespace deft::optimize {
namespace {

using replay::StepMemory;
using testing::HasSubstr;
using trace::MemoryPart;
using trace::MemoryTrace;

constexpr std::size_t kBlocks = 4;
constexpr std::uint32_t kLayers = 2 * kBlocks;

// Blocks of two layers each. Within a block 100 bytes are kept for backward, and its output of 10, which is the next one's input.
StepMemory blocks(std::uint64_t weights, std::uint32_t samples) {
  StepMemory memory{.samples = samples, .gradient_bytes = weights};
  const auto part = [](MemoryPart of) { return static_cast<std::uint16_t>(of); };
  const std::uint32_t after = 2 * kLayers + 3;
  memory.amounts.push_back({.part = part(MemoryPart::kWeights), .end = after, .bytes = weights});
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = "blocks." + std::to_string(layer / 2) + (layer % 2 == 0 ? ".up" : ".down");
    memory.layers.push_back(
        {name, 500, (kLayers - 1 - layer) * std::uint64_t{1'000'000}, weights * (layer + 1) / kLayers});
    const std::uint32_t backward = 2 * kLayers + 1 - layer;
    const bool last = layer % 2 == 1;  // of its block
    memory.amounts.push_back({.part = part(MemoryPart::kActivations),
                              .begin = layer + 1,
                              .end = last ? backward - 1 : backward,
                              .input_of = last && layer + 1 < kLayers ? layer + 1 : MemoryTrace::kNoLayer,
                              .bytes = last ? 10U : 100U,
                              .growing = last ? 10U : 100U});
  }
  return memory;
}

replay::MeasuredJob measured_job(double bytes_per_us, std::uint64_t weights = 200, std::uint32_t samples = 8) {
  model::Profile profile;
  for (std::uint32_t i = 0; i < kLayers; ++i)
    profile.buckets.push_back({"b" + std::to_string(kLayers - 1 - i), 1'000'000, 500, 1000, {}});
  profile.links.push_back({.name = "gloo:a", .latency_us = 100, .relative_time = {}, .bytes_per_us = bytes_per_us});
  auto measured = replay::measure(replay::traced_simulation(profile, "fifo", {.steps = 20, .nodes = {{}, {}}}));
  EXPECT_TRUE(measured);
  measured->profile = profile;
  measured->memories = {blocks(weights, samples), blocks(weights, samples)};
  return *std::move(measured);
}

double peak(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if) {
  return memory_peak(measured.memories.front(), what_if).use.total();
}

TEST(MemoryFit, AJobThatFitsIsLeftAlone) {
  const auto fit = fit_memory(measured_job(1e5), 2000);
  ASSERT_TRUE(fit) << fit.error().message();
  EXPECT_FALSE(fit->is_needed());
  EXPECT_TRUE(fit->chosen().what_if.is_as_traced());
  EXPECT_EQ(fit->traced.peak_bytes, 200 + 4 * 100 + 3 * 10);
}

// Communication takes no time, so micro-batches cost nothing, and recomputation does.
TEST(MemoryFit, AccumulationIsChosenIfItIsFaster) {
  const auto measured = measured_job(1e6);
  const auto fit = fit_memory(measured, 620);
  ASSERT_TRUE(fit) << fit.error().message();
  ASSERT_TRUE(fit->accumulation && fit->recomputation);
  EXPECT_EQ(fit->chosen().what_if.passes, 2U) << "the fewest that fit: " << peak(measured, {.passes = 2});
  EXPECT_LE(fit->chosen().peak_bytes, 620);
  EXPECT_LT(fit->accumulation->step_us, fit->recomputation->step_us);
}

// Communication takes about as long as backward, so it hides behind backward, and behind a quarter of it does not.
TEST(MemoryFit, RecomputationIsChosenIfItIsFaster) {
  const auto measured = measured_job(1100);
  const auto fit = fit_memory(measured, 560);
  ASSERT_TRUE(fit) << fit.error().message();
  ASSERT_TRUE(fit->accumulation && fit->recomputation);
  EXPECT_LT(fit->recomputation->step_us, fit->accumulation->step_us);
  EXPECT_EQ(fit->chosen().what_if.recomputed.size(), 1U) << "a block frees 100 bytes, and 70 are too many";
  EXPECT_LE(peak(measured, fit->chosen().what_if), 560);
}

TEST(MemoryFit, TakesNoMoreRangesThanItNeeds) {
  const auto measured = measured_job(1100);
  double before_us = 0;
  for (const std::uint64_t limit : {560U, 460U, 400U}) {
    const auto fit = fit_memory(measured, limit);
    ASSERT_TRUE(fit && fit->recomputation) << limit;
    EXPECT_LE(fit->recomputation->peak_bytes, static_cast<double>(limit));
    EXPECT_GE(fit->recomputation->step_us, before_us);
    before_us = fit->recomputation->step_us;
  }
}

TEST(MemoryFit, IfNothingFitsItSaysWhatTheLeastIs) {
  const auto fit = fit_memory(measured_job(1e5), 150);  // less than the weights
  ASSERT_FALSE(fit);
  EXPECT_EQ(fit.error().kind, ErrorKind::kExhausted);
  EXPECT_THAT(fit.error().message(), HasSubstr("the least is"));
}

TEST(MemoryFit, WithoutRecordsItSaysSo) {
  auto measured = measured_job(1e5);
  measured.memories.clear();
  const auto fit = fit_memory(measured, 1000);
  ASSERT_FALSE(fit);
  EXPECT_THAT(fit.error().message(), HasSubstr("does not tell what workers hold in memory"));
}

TEST(MemoryFit, MicroBatchesDivideTheBatchOfEveryWorker) {
  auto measured = measured_job(1e6, 200, 6);
  measured.memories[1].samples = 9;
  const auto fit = fit_memory(measured, 560);
  ASSERT_TRUE(fit && fit->accumulation);
  EXPECT_EQ(fit->accumulation->what_if.passes, 3U);
}

TEST(MemoryFit, WithoutTimesOfLayersNothingIsRecomputed) {
  auto measured = measured_job(1e6);
  for (auto& memory : measured.memories)
    for (auto& layer : memory.layers) layer.forward_us = 0;
  const auto fit = fit_memory(measured, 620);
  ASSERT_TRUE(fit);
  EXPECT_FALSE(fit->recomputation);
  EXPECT_TRUE(fit->accumulation);
}

TEST(MemoryFit, RangesAreNamedByTheirModules) {
  const auto memory = blocks(200, 8);
  EXPECT_EQ(describe(memory, {2, 3}), "blocks.1");
  EXPECT_EQ(describe(memory, {0, 7}), "blocks");
  EXPECT_EQ(describe(memory, {3, 3}), "blocks.1.down");
  EXPECT_EQ(describe(memory, {2, 5}), "blocks.1 to blocks.2");
  EXPECT_EQ(describe(memory, {1, 2}), "blocks.0.down to blocks.1.up");
  auto flat = memory;
  flat.layers.resize(3);
  flat.layers[0].name = "0", flat.layers[1].name = "2", flat.layers[2].name = "5";
  EXPECT_EQ(describe(flat, {0, 0}), "0 to 1") << "what follows without parameters belongs to it";
  EXPECT_EQ(describe(flat, {0, 1}), "0 to 4");
  EXPECT_EQ(describe(flat, {1, 2}), "2 to 5");
}

// Only what a script can wrap is recomputed: modules of several layers, and neighbours of a list.
TEST(MemoryFit, RangesAreModulesOrNeighboursOfAList) {
  auto measured = measured_job(1100);
  for (auto& memory : measured.memories)
    for (std::size_t i = 0; i < memory.layers.size(); ++i)
      memory.layers[i].name = i < 4 ? "encoder.part" + std::to_string(i) : "single" + std::to_string(i);
  const auto fit = fit_memory(measured, 560);
  ASSERT_TRUE(fit && fit->recomputation);
  ASSERT_EQ(fit->recomputation->what_if.recomputed.size(), 1U);
  EXPECT_EQ(describe(measured.memories.front(), fit->recomputation->what_if.recomputed.front()), "encoder");
}

// The search keeps to it, and compares with the job that does the same in the traced settings.
TEST(MemoryFit, TheSearchGoesOnFromThere) {
  const auto measured = measured_job(1100);
  const auto fit = fit_memory(measured, 560);
  ASSERT_TRUE(fit);
  const auto all = [] { return 1.0; };
  const auto found = search(measured, {.policies = {"fifo"}, .memory = fit->chosen().what_if}, all);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_NEAR(found->traced_us, fit->chosen().step_us, 1) << "steps vary as a whole in a search";
  EXPECT_GT(found->traced_us, fit->traced.step_us);
  EXPECT_LE(found->step_us, found->traced_us);
}

}  // namespace
}  // namespace deft::optimize
