// The simulator against numbers that are known: by hand, and from the papers' table.
#include "core/sim/simulation.h"

#include <gmock/gmock.h>

#include "tests/sim/run.h"

namespace deft::sim {
namespace {

constexpr double kComputeUs = 130'285;  // of Table II

TEST(Vgg19, FifoOnOneLinkIsWfbpOfThePapers) {
  const auto outcome = run(vgg19({"nccl"}), "fifo");
  // By hand: forward, and backward until bucket 6 is ready, and then all transfers one after the other.
  EXPECT_NEAR(outcome.step_us, 37'166 + 162 + 247'725, 1);
  EXPECT_NEAR(outcome.compute_us, kComputeUs, 0.5);
  EXPECT_NEAR(outcome.bubble_us, outcome.step_us - kComputeUs, 0.5);
  EXPECT_EQ(outcome.updates_per_step, 1);
  EXPECT_EQ(outcome.max_staleness_steps, 0u);
  EXPECT_EQ(outcome.period_steps, 1u);
}

TEST(Vgg19, PrioritySchemesOnOneLinkAreWithinThePapersRange) {
  for (const auto policy : {"bytescheduler", "usbyte", "prophet"}) {
    const double step_us = run(vgg19({"nccl"}), policy).step_us;
    EXPECT_GE(step_us, 245'000) << policy;
    EXPECT_LE(step_us, 265'000) << policy;
  }
}

TEST(Vgg19, MgWfbpSavesTheLatenciesOfTheBucketsThatWaitAnyway) {
  const double fifo_us = run(vgg19({"nccl"}), "fifo").step_us;
  EXPECT_LE(run(vgg19({"nccl"}), "mgwfbp").step_us, fifo_us + 0.5);
}

TEST(Vgg19, SecondLinkIsSharedBySynchronousSchemes) {
  const double capacity_us = 247'725 / (1 + 1 / 1.65);  // both links busy all the time
  for (const auto policy : {"bytescheduler", "usbyte", "prophet"}) {
    const double step_us = run(vgg19({"nccl", "gloo"}), policy).step_us;
    EXPECT_GE(step_us, capacity_us * 0.999) << policy;
    EXPECT_LE(step_us, capacity_us * 1.04) << policy;
  }
}

// Three parts on two links would leave one of them idle while the other carries the third.
TEST(Simulation, SlowLinksShareABucketInPartsFineEnoughToEndTogether) {
  const auto profile = small({{3'000'000, 0, 1}}, {10, 10});
  for (const auto policy : {"fifo", "mgwfbp"}) {
    const double step_us = run(profile, policy, {}, {1'000'000, 4'000'000}).step_us;
    EXPECT_GE(step_us, 150'000) << policy;  // both links busy all the time
    EXPECT_LE(step_us, 150'000 + 26'215 + 1) << policy;
  }
}

// Whoever takes one of two equal links for a slow one gives the other one more.
TEST(Simulation, ASchedulerGoesByWhatItTakesLinksFor) {
  const auto profile = small({{3'000'000, 0, 1}}, {10, 10});
  const auto step_us = [&](double second) {
    return run(profile, "bytescheduler", {.believed_links = {{"l0", 0, 10}, {"l1", 0, second}}}, {1'000'000, 4'000'000})
        .step_us;
  };
  EXPECT_EQ(step_us(10), run(profile, "bytescheduler", {}, {1'000'000, 4'000'000}).step_us);
  EXPECT_GT(step_us(2), 1.2 * step_us(10));
}

TEST(Simulation, WhatIsBelievedOfLinksMustBeACostOfEach) {
  const auto profile = small({{3'000'000, 0, 1}}, {10, 10});
  using Costs = std::vector<model::LinkModel>;
  for (const Costs& costs : {Costs{{"l0", 0, 10}}, Costs{{"l0", 0, 10}, {"l1", 0, 0}}})
    EXPECT_FALSE(try_run(profile, "fifo", {.believed_links = costs}));
}

TEST(Simulation, ForwardStartsAsSoonAsTheFirstBucketIsUpdated) {
  // Backward 480 + 160; bucket 1 (1600 bytes) goes from 480 on, bucket 0 (320) interrupts it at 640 for 320.
  const auto profile = small({{320, 80, 160}, {1600, 80, 480}});
  const auto outcome = run(profile, "bytescheduler", {}, {1024, 1024});
  // One part of 1024 bytes runs from 480 to 1504, then bucket 0 until 1824, then the rest until 2400; forward 80 after it.
  EXPECT_DOUBLE_EQ(outcome.step_us, 2480);
}

TEST(Simulation, AllHiddenCommunicationLeavesNoBubble) {
  const auto outcome = run(small({{1, 100, 100}, {64, 100, 100}}), "bytescheduler");
  EXPECT_NEAR(outcome.bubble_us, 1, 1e-9);  // the last bucket itself
}

TEST(Simulation, ContentionSlowsLinksThatAreBusyAtOnce) {
  const auto profile = small({{6400, 0, 0}, {6400, 0, 1}}, {1, 1});
  const Sizes whole{6400, 6400};
  EXPECT_DOUBLE_EQ(run(profile, "bytescheduler", {}, whole).step_us, 6401);
  EXPECT_DOUBLE_EQ(run(profile, "bytescheduler", {.contention = 0.25}, whole).step_us, 8001);
}

// Of 1000 bytes at a byte a microsecond, 400 need no time after a pause of 400 us.
TEST(Simulation, ALinkCarriesItsBurstAtOnceAfterAPauseThatIsLongEnough) {
  for (const auto& [compute_us, step_us] : {std::pair{5000.0, 5600.0}, std::pair{150.0, 1000.0}}) {
    auto profile = small({{1000, compute_us / 2, compute_us / 2}});
    profile.links.front().burst_bytes = 400;
    EXPECT_NEAR(run(profile, "fifo").step_us, step_us, 1) << compute_us;
  }
}

TEST(Simulation, SmallPartsPassOnThePriorityChannelAndTakeTheirBytesTimeFromTheOthers) {
  // Bucket 1 goes from 10 on, bucket 0 is ready at 20; forward of 5 and 50.
  const auto profile = small({{1000, 5, 10}, {100'000, 50, 10}});
  const Sizes whole{1 << 20, 1 << 20};
  EXPECT_DOUBLE_EQ(run(profile, "bytescheduler", {}, whole).step_us, 100'000 + 10 + 1000 + 5 + 50);
  // Bucket 0 passes and its forward hides; bucket 1 ends 1000 later, and all of it waits for that.
  EXPECT_DOUBLE_EQ(run(profile, "bytescheduler", {.priority_links = {0}}, whole).step_us, 10 + 100'000 + 1000 + 50);
}

TEST(Simulation, ThePriorityChannelIsForSmallPartsAndOnlyOnItsLinks) {
  const Sizes whole{1 << 20, 1 << 20};
  const auto larger = small({{(16 << 10) + 1, 5, 10}, {100'000, 50, 10}});
  EXPECT_EQ(run(larger, "bytescheduler", {.priority_links = {0}}, whole).step_us,
            run(larger, "bytescheduler", {}, whole).step_us);
  const auto two = small({{1000, 5, 10}, {100'000, 50, 10}}, {1, 1e-9});
  EXPECT_EQ(run(two, "fifo", {.priority_links = {1}}, whole).step_us, run(two, "fifo", {}, whole).step_us);
}

// A link sees the encoding alone. The 64 KiB of the layer that forward needs first come behind a megabyte.
TEST(Simulation, ThePriorityChannelIsForPartsThatAreSmallOnTheWire) {
  auto profile = small({{64 << 10, 5, 10}, {1'000'000, 50, 10}});
  profile.codecs.push_back({.name = "eighth", .wire_share = 0.125});
  const auto step_us = [&](model::CodecIndex codec, std::vector<model::LinkIndex> priority_links) {
    auto setup = setup_for(profile, "fifo");
    setup.codec = codec;
    return simulate(**sched::make_scheduler(setup), profile, {.priority_links = std::move(priority_links)})
        .value()
        .step_us;
  };
  EXPECT_LT(step_us(1, {0}), step_us(1, {}));
  EXPECT_EQ(step_us(0, {0}), step_us(0, {}));
}

TEST(Simulation, AllNodesWaitForTheSlowest) {
  const auto profile = small({{64, 10, 20}, {64, 10, 20}}, {1000});
  const double alone_us = run(profile, "fifo").step_us;
  const double with_straggler_us = run(profile, "fifo", {.nodes = {{1, 0}, {1, 0}, {2, 0}}}).step_us;
  EXPECT_NEAR(with_straggler_us, alone_us + 60, 0.1);
}

TEST(Simulation, ThousandsOfAlikeNodesCostNoMoreThanOne) {
  const auto profile = vgg19({"nccl"});
  const auto one = run(profile, "bytescheduler");
  const auto many = run(profile, "bytescheduler", {.nodes = std::vector<NodeSpeed>(5000)});
  EXPECT_EQ(one.events, many.events);
  EXPECT_EQ(one.step_us, many.step_us);
}

TEST(Simulation, JitterIsRepeatableAndMakesThePackOfNodesSlower) {
  const auto profile = vgg19({"nccl"});
  Options options{.nodes = std::vector<NodeSpeed>(8, NodeSpeed{1, 0.1})};
  const double first_us = run(profile, "fifo", options).step_us;
  EXPECT_EQ(first_us, run(profile, "fifo", options).step_us);
  options.seed = 99;
  EXPECT_NE(first_us, run(profile, "fifo", options).step_us);
  EXPECT_GT(first_us, run(profile, "fifo").step_us);
}

TEST(Simulation, TheTimelineAddsUpToTheStep) {
  const auto profile = vgg19({"nccl", "gloo"});
  const auto outcome = run(profile, "usbyte", {.steps = 40, .warmup_steps = 10, .record = true});
  std::vector<double> forward_begins;
  for (const auto& span : outcome.timeline.compute)
    if (span.bucket == 0 && span.stage == sched::Stage::kForward) forward_begins.push_back(span.start_us);
  ASSERT_EQ(forward_begins.size(), 40u);
  EXPECT_NEAR((forward_begins[39] - forward_begins[19]) / 20, outcome.step_us, 1);
}

TEST(Factors, AStepTakesAsLongAsTheSlowestNodeInIt) {
  const auto profile = vgg19({"nccl"});
  const auto slow = run(profile, "fifo", {.steps = 60, .warmup_steps = 20, .nodes = {{}, {.slowdown = 2}}});
  // By turns one node and the other computes twice as long.
  const auto uneven =
      run(profile, "fifo", {.steps = 60, .warmup_steps = 20, .nodes = {{.factors = {1, 2}}, {.factors = {2, 1}}}});
  EXPECT_NEAR(uneven.step_us, slow.step_us, 0.03 * slow.step_us);
}

TEST(Options, WhatCannotBeSimulatedIsAnErrorThatNamesIt) {
  const auto profile = vgg19({"nccl"});
  const auto message = [&](const auto& options) {
    const auto outcome = try_run(profile, "fifo", options);
    return outcome ? std::string("no error") : outcome.error().message();
  };
  EXPECT_THAT(message(Options{.steps = 0}), testing::HasSubstr("steps"));
  EXPECT_THAT(message(Options{.steps = 5, .warmup_steps = 5}), testing::HasSubstr("warm-up"));
  EXPECT_THAT(message(Options{.contention = -1}), testing::HasSubstr("contention"));
  EXPECT_THAT(message(Options{.contention = std::nan("")}), testing::HasSubstr("contention"));
  EXPECT_THAT(message(Options{.priority_links = {7}}), testing::HasSubstr("no link 7"));
  EXPECT_THAT(message(Options{.nodes = {}}), testing::HasSubstr("nodes"));
  EXPECT_THAT(message(Options{.nodes = {{0, 0}}}), testing::HasSubstr("slowdown"));
  EXPECT_THAT(message(Options{.nodes = {{.factors = {1, -1}}}}), testing::HasSubstr("factors"));
  EXPECT_THAT(message(Options{.max_events = 1000}), testing::HasSubstr("1000 events"));
}

TEST(Options, ARunIsStoppedSoonAfterSomebodyWantsIt) {
  int looks = 0;
  const Options options{.steps = 1'000'000, .is_stopped = [&looks] { return ++looks == 3; }};
  const auto outcome = try_run(vgg19({"nccl"}), "fifo", options);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::kUnavailable);
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace deft::sim
