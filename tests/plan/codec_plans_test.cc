// Plans with codecs: bits are given up only as far as needed, and before freshness.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "core/plan/codec_choice.h"
#include "core/plan/planner.h"
#include "tests/plan/random_profile.h"

namespace deft::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The least error of all choices within the budget; infinite if there is none.
double brute_force(const std::vector<std::vector<CodecOption>>& options, double budget_us, std::size_t bucket = 0,
                   double us = 0, double error = 0) {
  if (bucket == options.size()) return us <= budget_us ? error : kInfinity;
  double least = kInfinity;
  for (const CodecOption& option : options[bucket])
    least = std::min(least, brute_force(options, budget_us, bucket + 1, us + option.us, error + option.error));
  return least;
}

RC_GTEST_PROP(CodecChoice, IsTheBestChoiceWithinTheBudget, ()) {
  std::vector<std::vector<CodecOption>> options(*rc::gen::inRange<std::size_t>(1, 7));
  double most_us = 0;
  for (auto& bucket : options) {
    double slowest_us = 0;
    for (std::size_t i = 0, count = *rc::gen::inRange<std::size_t>(1, 5); i < count; ++i) {
      bucket.push_back({*rc::gen::inRange(0, 1000) / 8.0, *rc::gen::inRange(0, 1000) / 8.0});
      slowest_us = std::max(slowest_us, bucket.back().us);
    }
    most_us += slowest_us;
  }
  const double budget_us = most_us * *rc::gen::inRange(0, 120) / 100.0;
  const CodecChoice choice(options);
  const auto chosen = choice.within(budget_us);
  const double best = brute_force(options, budget_us);
  if (best == kInfinity) {
    RC_ASSERT(std::abs(choice.us(chosen) - choice.least_us()) < 1e-9);
    return;
  }
  RC_ASSERT(choice.us(chosen) <= budget_us + 1e-9);
  RC_ASSERT(std::abs(choice.error(chosen) - best) < 1e-9);
  RC_ASSERT(choice.error_bound(budget_us) <= best + 1e-9);
}

TEST(CodecChoice, OfThousandsOfBucketsIsNearTheBound) {
  std::vector<std::vector<CodecOption>> options;
  for (std::size_t b = 0; b < 2000; ++b) {
    const double bytes = 1.0 + static_cast<double>(b * 7919 % 1009);
    options.push_back({{bytes, 0}, {bytes / 2, 1e-6 * bytes}, {bytes / 4, 1e-4 * bytes}, {bytes / 8, 1e-2 * bytes}});
  }
  const CodecChoice choice(options);
  for (const double share : {0.9, 0.5, 0.3, 0.2}) {
    const double budget_us = share * choice.us(std::vector<std::size_t>(2000, 0));
    const auto chosen = choice.within(budget_us);
    EXPECT_LE(choice.us(chosen), budget_us);
    EXPECT_LE(choice.error(chosen), choice.error_bound(budget_us) + 1e-2 * 1009);
  }
}

std::vector<model::CodecCost> ladder() {
  return {{},
          {.name = "bf16", .wire_share = 0.5, .encode_us_per_byte = 5e-5, .decode_us_per_byte = 5e-5, .error = 3e-6},
          {.name = "int8", .wire_share = 0.254, .encode_us_per_byte = 5e-5, .decode_us_per_byte = 5e-5, .error = 5e-5},
          {.name = "int4", .wire_share = 0.129, .encode_us_per_byte = 5e-5, .decode_us_per_byte = 5e-5, .error = 1e-2}};
}

double enough_us(const model::Profile& profile, const PlanLimits& limits) {
  return (1 + std::max(limits.fresh_tolerance, limits.bubble_tolerance)) * profile.compute_us() * limits.capacity;
}

double fresh_us(const model::Profile& profile, const std::vector<model::CodecIndex>& codecs, const PlanLimits& limits) {
  const auto table = fresh_timetable(Problem(profile, codecs), limits);
  return table ? table->plan.step_us : kInfinity;
}

RC_GTEST_PROP(CodecPlans, GiveUpNothingElseBitsElseFreshness, ()) {
  model::Profile profile = any_profile({.most_buckets = 30, .hard = *rc::gen::arbitrary<bool>()});
  profile.codecs = ladder();
  for (auto& bucket : profile.buckets) {
    if (*rc::gen::inRange(0, 4) == 0) bucket.coded_bytes = 0;
    if (*rc::gen::inRange(0, 4) == 0) bucket.element_bytes = 2;
  }
  const PlanLimits limits = training_limits();
  const auto table = find_timetable(profile, limits);
  RC_ASSERT(table.has_value());
  const model::Plan& plan = table->plan;
  const double enough = enough_us(profile, limits) * (1 - 1e-9);  // the planner adds the times in another order
  const bool has_bits = std::ranges::any_of(plan.codecs, [](auto codec) { return codec != 0; });
  const bool is_late = plan.is_late();
  if (has_bits || is_late) RC_ASSERT(fresh_us(profile, {}, limits) > enough);
  std::vector<model::CodecIndex> last;
  for (std::size_t b = 0; b < profile.buckets.size(); ++b)
    last.push_back(profile.buckets[profile.buckets.size() - 1 - b].coded_share().share > 0 ? 3 : 0);
  if (is_late) RC_ASSERT(fresh_us(profile, last, limits) > enough);
  if (!is_late && plan.step_us > enough) RC_ASSERT(plan.step_us <= fresh_us(profile, last, limits) * (1 + 1e-6));
  for (std::size_t b = 0; b < plan.codecs.size(); ++b)
    if (profile.buckets[profile.buckets.size() - 1 - b].coded_share().share == 0) RC_ASSERT(plan.codecs[b] == 0);
  const Evaluation result = evaluate(*table, Problem(profile, plan.codecs));
  RC_ASSERT(result.runs);
  RC_ASSERT(std::abs(result.step_us - plan.step_us) < 1e-6 * plan.step_us);
  if (has_bits) RC_ASSERT(plan.codec_error >= plan.codec_error_bound * (1 - 1e-9));
}

// Against all assignments of codecs to a few buckets.
TEST(CodecPlans, OfFewBucketsAreNearTheBest) {
  double worst = 0, sum = 0;
  int counted = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    model::Profile profile;
    unsigned state = seed * 2654435761U;
    const auto next = [&state](unsigned below) { return (state = state * 1664525U + 1013904223U) / 65536U % below; };
    for (unsigned b = 0; b < 4; ++b)  // forward needs the first one at once, so it is small, as in most models
      profile.buckets.push_back({"b" + std::to_string(b), b == 0 ? 4'000U : 200'000U + 100'000U * next(30),
                                 1000.0 + next(2000), 2000.0 + next(4000), std::nullopt});
    profile.links.push_back({"a", 20, std::nullopt, 40.0 + next(200)});
    profile.links.push_back({"b", 20, std::nullopt, 40.0 + next(200)});
    profile.codecs = ladder();
    PlanLimits limits = training_limits();
    limits.codecs.negligible_error = 0;  // so that the least error is looked for
    const double enough = enough_us(profile, limits);
    double best = kInfinity, bytes = 0;
    for (const auto& bucket : profile.buckets) bytes += static_cast<double>(bucket.bytes);
    for (unsigned code = 0; code < 256; ++code) {
      std::vector<model::CodecIndex> codecs;
      double error = 0;
      for (unsigned b = 0; b < 4; ++b) {
        codecs.push_back(static_cast<model::CodecIndex>(code >> (2 * b) & 3U));
        error += profile.codecs[codecs[b]].error * static_cast<double>(profile.buckets[3 - b].bytes) / bytes;
      }
      if (error < best && fresh_us(profile, codecs, limits) <= enough) best = error;
    }
    const auto plan = find_plan(profile, limits);
    ASSERT_TRUE(plan);
    if (best == kInfinity || best == 0) {
      EXPECT_EQ(best == 0, plan->codec_error == 0) << seed;
      continue;
    }
    EXPECT_EQ(plan->max_staleness(), 0U) << seed;
    worst = std::max(worst, plan->codec_error / best);
    sum += plan->codec_error / best;
    ++counted;
  }
  ASSERT_GT(counted, 20);
  std::printf("codec error over the best: mean %.3f, worst %.3f, of %d\n", sum / counted, worst, counted);
  EXPECT_LT(sum / counted, 1.05);
  EXPECT_LT(worst, 1.5);
}

// A link that is busy nearly all the time makes training wait when a time varies. Bits that cost no accuracy buy room.
TEST(CodecPlans, NegligibleErrorsBuyRoomOnTheLinks) {
  model::Profile profile;
  for (int b = 0; b < 12; ++b)
    profile.buckets.push_back({"b" + std::to_string(b), b == 0 ? 4'000U : 1'000'000U, 1000, 2000, std::nullopt});
  profile.codecs = ladder();
  const auto load_of = [&](const model::Plan& plan) {
    double us = 0;
    for (std::size_t b = 0; b < plan.codecs.size(); ++b) {
      const std::size_t of_profile = profile.buckets.size() - 1 - b;
      us += profile.cost(of_profile, 0, plan.codecs[b]).us(profile.buckets[of_profile].bytes);
    }
    return us / profile.compute_us();
  };
  for (const double coverage : {1.0, 2.0}) {
    profile.links = {{"a", 20, std::nullopt, 11'004'000 / (coverage * profile.compute_us())}};
    const auto roomy = find_plan(profile, training_limits());
    ASSERT_TRUE(roomy);
    EXPECT_LE(load_of(*roomy), 0.6);
    EXPECT_LE(roomy->codec_error, kNegligibleError);
    PlanLimits exacting = training_limits();
    exacting.codecs.negligible_error = 0;
    const auto tight = find_plan(profile, exacting);
    ASSERT_TRUE(tight);
    EXPECT_GT(load_of(*tight), 0.8);
    EXPECT_LT(tight->codec_error, roomy->codec_error);
  }
  // Where it takes int4, nothing is negligible: the least error counts.
  profile.links = {{"a", 20, std::nullopt, 11'004'000 / (6 * profile.compute_us())}};
  const auto plan = find_plan(profile, training_limits());
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->codec_error, kNegligibleError);
  EXPECT_LE(plan->codec_error, plan->codec_error_bound * 1.5);
}

// The gradient that forward needs first comes last, and no codec hides it. That is no reason for stale updates, nor for the fewest bits in
// all the other buckets.
TEST(CodecPlans, AShortWaitIsNoReasonForStaleUpdates) {
  model::Profile profile;
  for (int b = 0; b < 12; ++b)
    profile.buckets.push_back({"b" + std::to_string(b), b == 0 ? 600'000U : 1'000'000U, 1000, 2000, std::nullopt});
  profile.codecs = ladder();
  profile.links = {{"a", 20, std::nullopt, 11'600'000 / (2 * profile.compute_us())}};
  const auto plan = find_plan(profile, training_limits());
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->max_staleness(), 0U);
  EXPECT_EQ(plan->updates_per_step(), 1.0);
  EXPECT_GT(plan->step_us, 1.01 * plan->compute_us) << "it waits";
  EXPECT_LT(std::ranges::count(plan->codecs, 3), 12) << "int4 is for the buckets that wait";
  PlanLimits at_any_price = training_limits();
  at_any_price.least_stale_gain = 0;
  const auto stale = find_plan(profile, at_any_price);
  ASSERT_TRUE(stale);
  EXPECT_GT(stale->stale_share(), 0);
  EXPECT_GT(stale->step_us, (1 - kLeastStaleGain) * plan->step_us);
}

// The widest matrix is merged over two steps, and a fifth of the links' time is left: too little for an update in each step.
TEST(CodecPlans, ALatePlanGivesBackTheBitsForWhichItsLinksHaveTime) {
  model::Profile profile;
  for (int b = 0; b < 10; ++b) profile.buckets.push_back({"b" + std::to_string(b), 200'000, 1000, 2000, std::nullopt});
  profile.buckets.front().bytes = 4'000, profile.buckets.back().bytes = 8'400'000;
  profile.codecs = ladder();
  profile.links = {{"a", 20, std::nullopt, 31}};
  PlanLimits limits = training_limits();
  limits.max_merged_steps = 2;
  const auto table = find_timetable(profile, limits);
  ASSERT_TRUE(table);
  const model::Plan& plan = table->plan;
  ASSERT_EQ(plan.cycles.own.size(), 1U) << "the widest matrix alone is late";
  ASSERT_EQ(plan.max_merged(), 2U);
  EXPECT_LE(plan.step_us, enough_us(profile, limits));
  EXPECT_GT(std::ranges::count_if(plan.codecs, [](auto codec) { return codec < 3; }), 2) << "of 9 fresh buckets";
  EXPECT_GT(plan.codec_error_bound, 0);
  EXPECT_GE(plan.codec_error, plan.codec_error_bound);
  EXPECT_LE(plan.codec_error, 1.5 * plan.codec_error_bound) << "the bound is that of the updates that it makes";
  EXPECT_NEAR(evaluate(*table, Problem(profile, plan.codecs)).step_us, plan.step_us, 1e-6 * plan.step_us);
}

}  // namespace
}  // namespace deft::plan
