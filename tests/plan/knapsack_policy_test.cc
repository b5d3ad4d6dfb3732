// The knapsack policies as the simulator runs them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/papers/policies.h"
#include "core/partition/rebucket.h"
#include "core/plan/planner.h"
#include "core/sched/profile_meter.h"
#include "core/sim/simulation.h"
#include "tests/plan/random_profile.h"
#include "tests/plan/update_rate_limit.h"

namespace deft::sched {
namespace {

model::Profile vgg19() { return model::read_profile(DEFT_PROFILES "/vgg19_deft_table2.json").value(); }

Result<sim::Outcome> run(const model::Profile& profile, std::string_view policy, bool given = true,
                         const sim::Options& options = {}) {
  const auto setup = sim::setup_for(profile, policy);
  auto scheduler = papers::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  if (!given) scheduler = measured(std::move(*scheduler), setup);
  return sim::simulate(**scheduler, profile, options);
}

TEST(KnapsackPolicy, vgg19TakesTheComputeTimeOnTwoLinks) {
  const auto outcome = run(vgg19(), "knapsack");
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_LE(outcome->step_us, 131'500);
  EXPECT_GE(outcome->updates_per_step, 0.93 * plan::update_rate_limit(vgg19()));
}

// A part lasts 2 ms on this link, and the first bucket that forward needs, too large for the priority channel, is the last
// one that backward produces.
TEST(KnapsackPolicy, whatForwardNeedsFirstWaitsForNoPart) {
  model::Profile profile;
  profile.buckets = {{"conv", 40'000, 12'000, 20'000, {}}, {"fc", 28'000'000, 2'000, 2'000, {}}};
  profile.links = {{"link", 50, {}, 1000}};
  auto setup = sim::setup_for(profile, "knapsack");
  setup.limits.max_staleness_steps = 0;
  const auto scheduler = papers::make_scheduler(setup);
  ASSERT_TRUE(scheduler) << scheduler.error().message();
  const auto outcome = sim::simulate(**scheduler, profile, {});
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_LE(outcome->step_us, 1.01 * profile.compute_us());
}

TEST(KnapsackPaperPolicy, vgg19TakesTheComputeTimeWithItsOwnBuckets) {
  const auto profile = partition::rebucket(vgg19(), "deft");
  ASSERT_TRUE(profile) << profile.error().message();
  const auto outcome = run(*profile, "knapsack-paper");
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_LE(outcome->step_us, 131'500);
  EXPECT_GT(outcome->updates_per_step, 0.5);
}

TEST(KnapsackPaperPolicy, sendsWhatNoKnapsackHolds) {
  const auto outcome = run(model::with_links(vgg19(), {"gloo"}).value(), "knapsack-paper");  // a bucket of 295 ms
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_GT(outcome->updates_per_step, 0.1);
}

TEST(KnapsackPaperPolicy, asksForAProfile) { EXPECT_THROW(run(vgg19(), "knapsack-paper", false), std::logic_error); }

RC_GTEST_PROP(KnapsackPolicy, SimulatedStepsTakeTheComputeTimeAndThePlansRate, ()) {
  const auto profile = any_profile({.most_buckets = 20});
  const auto plan = plan::find_plan(profile, {});
  RC_ASSERT(plan.has_value());
  const auto outcome = run(profile, "knapsack");
  if (!outcome) RC_FAIL(outcome.error().message());
  RC_ASSERT(outcome->step_us <= 1.03 * profile.compute_us());
  RC_ASSERT(std::abs(outcome->updates_per_step / plan->updates_per_step() - 1) < 0.02);
  RC_ASSERT(outcome->max_staleness_steps <= plan->max_staleness());
}

RC_GTEST_PROP(KnapsackPaperPolicy, RunsEveryProfile, ()) {
  const auto outcome = run(any_profile({.most_buckets = 12, .hard = true}), "knapsack-paper");
  if (!outcome) RC_FAIL(outcome.error().message());
  RC_ASSERT(outcome->updates_per_step > 0.0);
}

// The step time that the policy comes to without being given a profile, in units of compute.
double measured_step(model::Profile profile) {
  for (std::size_t l = 0; l < profile.links.size(); ++l) {
    const auto model = profile.link_model(l);
    profile.links[l] = {model.name, model.latency_us, {}, model.bytes_per_us};
  }
  const auto outcome = run(profile, "knapsack", false, {.steps = 500, .warmup_steps = 200});
  if (!outcome) RC_FAIL(outcome.error().message());
  return outcome->step_us / profile.compute_us();
}

// Without a profile the policy begins synchronously, measures, and is soon as fast as with one. Forward is seen only as a
// whole and shared out as backward is; here that is right.
RC_GTEST_PROP(KnapsackPolicy, MeasuresWhatItIsNotGiven, ()) {
  auto profile = any_profile({.most_buckets = 12, .most_links = 2});
  for (auto& bucket : profile.buckets) bucket.forward_us = bucket.backward_us / 2;
  RC_ASSERT(measured_step(profile) <= 1.05);
}

// Here it is wrong, and costs some waiting: forward is a third of compute, and only a part of it can be misplaced.
RC_GTEST_PROP(KnapsackPolicy, LosesLittleWhereForwardIsSharedOutOtherwise, ()) {
  RC_ASSERT(measured_step(any_profile({.most_buckets = 12, .most_links = 2})) <= 1.15);
}

// Two buckets are ready before there is a plan: a small one that may not be encoded, and a large one that forward needs first.
std::vector<Launch> first_launches(const Setup& setup) {
  const auto scheduler = papers::make_scheduler(setup).value();
  scheduler->bucket_ready(0, 0, 0);
  scheduler->bucket_ready(1, 0, 0);
  return scheduler->take_launches(0);
}

Setup encoding_setup() {
  Setup setup;
  setup.policy = "knapsack";
  setup.buckets = {{"bias", 0, 40'000, model::DType::kFloat32, 1, 0, 1},
                   {"weight", 40'000, 80'000, model::DType::kFloat32, 0, 1, 1}};
  setup.buckets[0].coded_bytes = 0;
  setup.buckets[1].coded_bytes = 80'000;
  setup.links = {{"link", 10, 1000}};
  setup.limits = plan::training_limits();
  setup.codecs = {{},
                  {.name = "bf16", .wire_share = 0.5, .error = 3e-6},
                  {.name = "int8", .wire_share = 0.25, .error = 5e-5},
                  {.name = "int4", .wire_share = 0.13, .error = 1e-2}};
  return setup;
}

TEST(KnapsackPolicy, beginsWithTheFewestBitsThatCostNoAccuracy) {
  const auto codecs_of = [](const auto& setup) {
    std::vector<model::CodecIndex> codecs(2, 99);
    for (const Launch& launch : first_launches(setup)) codecs[launch.bucket] = launch.codec;
    return codecs;
  };
  using Codecs = std::vector<model::CodecIndex>;
  auto setup = encoding_setup();
  EXPECT_EQ(codecs_of(setup), (Codecs{0, 2}));
  setup.limits.codecs.last = 1;
  EXPECT_EQ(codecs_of(setup), (Codecs{0, 1}));
  setup.codecs = {{}, setup.codecs[3]};
  EXPECT_EQ(codecs_of(setup), (Codecs{0, 0})) << "no codec is exact enough";
  setup = encoding_setup();
  setup.pinned = model::parse_cycles("0@1").value();
  EXPECT_EQ(codecs_of(setup), (Codecs{0, 0})) << "the user's plan encodes nothing";
}

TEST(KnapsackPolicy, beginsInTheOrderOfForward) {
  const auto launches = first_launches(encoding_setup());
  ASSERT_FALSE(launches.empty());
  EXPECT_EQ(launches[0].bucket, 1U);
}

Result<sim::Outcome> run_pinned(const char* cycle, const plan::PlanLimits& limits = {}) {
  const auto profile = vgg19();
  auto setup = sim::setup_for(profile, "knapsack");
  setup.limits = limits;
  setup.pinned = model::parse_cycles(cycle).value();
  const auto scheduler = papers::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  return sim::simulate(**scheduler, profile, {.steps = 120, .warmup_steps = 30});
}

TEST(PinnedPlan, decidesWhateverIsMeasured) {
  const auto outcome = run_pinned("0-1@4,2@5");
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_DOUBLE_EQ(outcome->updates_per_step, 2.0 / 3);
  EXPECT_EQ(outcome->max_staleness_steps, 2U);
}

TEST(PinnedPlan, sendsPartsThatAreShortBesideAStep) {
  model::Profile profile;
  profile.buckets = {{"b0", 50'000'000, 30'000, 70'000, {}}};
  profile.links = {{"link", 10, {}, 1000}};
  auto setup = sim::setup_for(profile, "knapsack");
  setup.pinned = model::parse_cycles("0@1").value();
  const auto scheduler = papers::make_scheduler(setup).value();
  ASSERT_TRUE(scheduler->wants_profile(0));
  scheduler->profile_measured(profile, 0, 0);
  EXPECT_FALSE(scheduler->wants_profile(1)) << "it makes no other plan";
  scheduler->bucket_ready(0, 0, 0);
  const auto launches = scheduler->take_launches(0);
  ASSERT_FALSE(launches.empty());
  EXPECT_LE(launches[0].bytes, 1'000'000U) << "a hundredth of a step";
}

TEST(PinnedPlan, staysWithinTheLimits) {
  const auto refused = [](const char* cycle, const plan::PlanLimits& limits) {
    const auto outcome = run_pinned(cycle, limits);
    return outcome ? "accepted" : outcome.error().message();
  };
  EXPECT_NE(refused("0@4", {.max_generations = 3}).find("needs an arena of 4 slots, of 3"), std::string::npos);
  EXPECT_NE(refused("0@4", {.max_staleness_steps = 2}).find("3 steps late, and the limit is 2"), std::string::npos);
  EXPECT_NE(refused("0-1@2", {.max_staleness_steps = 0}).find("updated before the next"), std::string::npos);
  EXPECT_NE(refused("0-3@4", {.max_merged_steps = 3}).find("merges 4 steps, and the limit is 3"), std::string::npos);
}

TEST(PinnedPlan, datesBucketsOneByOne) {
  const auto outcome = run_pinned("0@1;0:0-1@3");
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->max_staleness_steps, 1U);
  EXPECT_LT(outcome->updates_per_step, 1);
  EXPECT_GT(outcome->updates_per_step, 0.5);
  const auto missing = run_pinned("0@1;99:0-1@3");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("of bucket 99"), std::string::npos) << missing.error().message();
}

}  // namespace
}  // namespace deft::sched
