// The policy `auto` with the real selector, in the simulator: it ends with the policy that the simulator says, and follows a network
// that changes.
#include "core/select/simulating_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "core/sched/policy_chooser.h"
#include "core/sched/profile_meter.h"
#include "tests/sim/run.h"

namespace deft::select {
namespace {

using sched::PolicyChoice;

sched::PolicyQuestion question_of(const model::Profile& profile) {
  return {profile, sim::setup_for(profile, "auto"), sched::PolicyChooser::candidates(), true};
}

// All but the last bucket of forward are small; its transfer is as long as compute, and forward needs it last.
model::Profile hidden_by_forward() {
  return sim::small({{400'000, 3000, 6000}, {400'000, 3000, 6000}, {400'000, 3000, 6000}, {9'000'000, 3000, 6000}},
                    {400}, 20);
}

// Parts cost 300 us each, so p3's slices are too small; and behind a credit of 4 MB the small buckets, which forward needs first,
// wait for 10 ms.
model::Profile between_sizes() {
  return sim::small({{400'000, 3000, 6000}, {400'000, 3000, 6000}, {400'000, 3000, 6000}, {9'000'000, 3000, 6000}},
                    {400}, 300);
}

// Everything is sent long before backward ends.
model::Profile hidden_anyway() { return sim::small({{4096, 3000, 6000}, {4096, 3000, 6000}}, {4000}, 5); }

TEST(Forecasts, AreTheSimulatorsTimesWithTheBestFirst) {
  const auto profile = hidden_by_forward();
  const auto selector = make_selector(When::kAtOnce);
  EXPECT_FALSE(selector->take());
  selector->ask(question_of(profile));
  const auto answer = selector->take();
  ASSERT_TRUE(answer);
  EXPECT_FALSE(selector->take()) << "it is given once";
  EXPECT_EQ(answer->size(), sched::PolicyChooser::candidates().size());
  EXPECT_TRUE(std::ranges::is_sorted(*answer, {}, &sched::PolicyForecast::step_us));
  const sim::Options options{.steps = 12, .warmup_steps = 6};
  const auto found = std::ranges::find(*answer, PolicyChoice{"bytescheduler", 0}, &sched::PolicyForecast::choice);
  ASSERT_NE(found, answer->end());
  const sim::Sizes sizes{1 << 20, 4 << 20};
  EXPECT_DOUBLE_EQ(found->step_us, sim::run(profile, "bytescheduler", options, sizes).step_us);
}

TEST(Forecasts, OfAJobWhoseLaunchesAllHaveOneCodecAreTheSame) {
  const auto profile = hidden_by_forward();
  const auto selector = make_selector(When::kAtOnce);
  auto question = question_of(profile);
  selector->ask(question);
  const auto exact = selector->take();
  question.setup.codec = 1;
  selector->ask(question);
  const auto encoded = selector->take();
  ASSERT_TRUE(exact && encoded);
  ASSERT_EQ(encoded->size(), exact->size());
  for (std::size_t i = 0; i < exact->size(); ++i) EXPECT_EQ((*encoded)[i].step_us, (*exact)[i].step_us);
}

TEST(Forecasts, InTheBackgroundAreTheSame) {
  const auto profile = hidden_by_forward();
  const auto at_once = make_selector(When::kAtOnce), behind = make_selector(When::kInBackground);
  at_once->ask(question_of(profile));
  behind->ask(question_of(hidden_anyway()));
  behind->ask(question_of(profile));  // replaces the first one
  const auto expected = at_once->take();
  auto answer = behind->take();
  while (!answer) {
    std::this_thread::yield();
    answer = behind->take();
  }
  ASSERT_EQ(answer->size(), expected->size());
  for (std::size_t i = 0; i < answer->size(); ++i) {
    EXPECT_EQ((*answer)[i].choice, (*expected)[i].choice);
    EXPECT_EQ((*answer)[i].step_us, (*expected)[i].step_us);
  }
}

TEST(Forecasts, SeeNoGainInPriorityIfWorkersWaitBeforeForward) {
  auto question = question_of(hidden_by_forward());
  question.setup.partition_bytes = 100'000;
  question.setup.credit_bytes = 200'000;
  const PolicyChoice urgent{"bytescheduler", 0}, plain = sched::PolicyChooser::first_choice();
  EXPECT_LT(forecast(question, urgent, false)->step_us, 0.95 * forecast(question, plain, false)->step_us);
  question.overlaps_forward = false;
  EXPECT_GE(forecast(question, urgent, false)->step_us, 0.99 * forecast(question, plain, false)->step_us);
}

TEST(Forecasts, HaveTheBestSizesIfTheQuestionAsksForThem) {
  auto question = question_of(between_sizes());
  const auto selector = make_selector(When::kAtOnce);
  selector->ask(question);
  const auto own = selector->take();
  question.tunes_sizes = true;
  selector->ask(question);
  const auto tuned = selector->take();
  ASSERT_TRUE(own && tuned);
  ASSERT_TRUE(tuned->front().choice.sizes);
  EXPECT_LT(tuned->front().step_us, 0.98 * own->front().step_us);
  EXPECT_EQ(tuned->size(), own->size() + 1) << "the own sizes stay in it, to go back to";
  double best_us = 1e18;
  for (std::uint64_t part = 64 << 10; part <= (16 << 20); part *= 2)
    for (std::uint64_t credit = 64 << 10; credit <= (64 << 20); credit *= 2) {
      const PolicyChoice choice{tuned->front().choice.policy, 0, sched::LaunchSizes{part, credit}};
      best_us = std::min(best_us, forecast(question, choice, false)->step_us);
    }
  EXPECT_LE(tuned->front().step_us, 1.02 * best_us);
  EXPECT_DOUBLE_EQ(forecast(question, tuned->front().choice, false)->step_us, tuned->front().step_us);
}

TEST(Forecasts, TuneTheSizesOnFromThoseThatTheJobHas) {
  auto question = question_of(between_sizes());
  question.tunes_sizes = true;
  // They are better than the job's own, and as the profile is now, smaller parts are better still.
  const PolicyChoice in_force{"usbyte", 0, sched::LaunchSizes{256 << 10, 4 << 20}};
  question.candidates.push_back(in_force);
  const auto selector = make_selector(When::kAtOnce);
  selector->ask(question);
  const auto answer = selector->take();
  ASSERT_TRUE(answer);
  const double in_force_us = forecast(question, in_force, false)->step_us;
  EXPECT_LT(in_force_us, forecast(question, {"usbyte", 0}, false)->step_us);
  EXPECT_LT(answer->front().step_us, 0.99 * in_force_us);
}

TEST(Forecasts, HaveNoOtherSizesIfTheyWinNothing) {
  auto question = question_of(hidden_anyway());
  question.tunes_sizes = true;
  const auto selector = make_selector(When::kAtOnce);
  selector->ask(question);
  const auto answer = selector->take();
  ASSERT_TRUE(answer);
  for (const auto& forecast : *answer) EXPECT_FALSE(forecast.choice.sizes);
}

TEST(Forecasts, LeaveOutWhatCannotRun) {
  auto question = question_of(hidden_anyway());
  question.candidates = {{"knapsack-paper", 0}, {"fifo", 0}};
  const auto selector = make_selector(When::kAtOnce);
  selector->ask(question);
  const auto answer = selector->take();
  ASSERT_EQ(answer->size(), 1u);
  EXPECT_EQ(answer->front().choice.policy, "fifo");
}

// What a run of `auto` decided, in order.
std::vector<sched::PolicyChange> changes_of(sched::Scheduler& scheduler) {
  std::vector<sched::PolicyChange> changes;
  while (auto change = scheduler.take_policy_change()) changes.push_back(*std::move(change));
  return changes;
}

std::unique_ptr<sched::Scheduler> make_auto(const model::Profile& profile, bool measures) {
  auto setup = sim::setup_for(profile, "auto");
  setup.selector = make_selector(When::kAtOnce);
  auto made = sched::make_scheduler(setup).value();
  return measures ? sched::measured(std::move(made), setup) : std::move(made);
}

double best_exact_us(const model::Profile& profile) {
  double best_us = 1e18;
  for (const auto& candidate : sched::PolicyChooser::candidates())
    best_us = std::min(best_us, forecast(question_of(profile), candidate, false)->step_us);
  return best_us;
}

TEST(Auto, IsTheBestExactPolicyFromTheStartIfItKnowsTheProfile) {
  for (const auto& profile :
       {hidden_by_forward(), hidden_anyway(), sim::vgg19({"nccl"}), sim::vgg19({"nccl", "gloo"})}) {
    const auto scheduler = make_auto(profile, false);
    const auto outcome = sim::simulate(*scheduler, profile, {.steps = 30, .warmup_steps = 10});
    ASSERT_TRUE(outcome);
    EXPECT_LE(outcome->step_us, 1.011 * best_exact_us(profile));
  }
}

TEST(Auto, MeasuresTriesAndConfirms) {
  const auto profile = hidden_by_forward();
  const auto scheduler = make_auto(profile, true);
  ASSERT_TRUE(sim::simulate(*scheduler, profile, {.steps = 60, .warmup_steps = 40}));
  const auto changes = changes_of(*scheduler);
  ASSERT_GE(changes.size(), 2u);
  EXPECT_THAT(changes[0].reason, testing::StartsWith("the first profile: the simulator expects"));
  EXPECT_NE(changes[0].choice, sched::PolicyChooser::first_choice());
  EXPECT_EQ(changes[0].choice, changes[0].forecasts.front().choice);
  EXPECT_THAT(changes[1].reason, testing::StartsWith("confirmed"));
  EXPECT_EQ(changes[1].choice, changes[0].choice);
  EXPECT_LT(*changes[1].after_us, *changes[1].before_us);
  EXPECT_EQ(changes.back().choice, changes[0].choice) << "here the forecast is what is measured";
}

TEST(Auto, TunesTheSizesToo) {
  const auto profile = between_sizes();
  const auto scheduler = make_auto(profile, true);
  const auto outcome = sim::simulate(*scheduler, profile, {.steps = 80, .warmup_steps = 60});
  ASSERT_TRUE(outcome);
  const auto changes = changes_of(*scheduler);
  ASSERT_FALSE(changes.empty());
  ASSERT_TRUE(changes.back().choice.sizes);
  EXPECT_EQ(changes.back().sizes, *changes.back().choice.sizes);
  EXPECT_LT(outcome->step_us, 0.98 * best_exact_us(profile)) << "of the policies with their own sizes";
}

TEST(Auto, StaysAsItBeginsIfNothingWaits) {
  const auto profile = hidden_anyway();
  const auto scheduler = make_auto(profile, true);
  ASSERT_TRUE(sim::simulate(*scheduler, profile, {.steps = 60, .warmup_steps = 40}));
  const auto changes = changes_of(*scheduler);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].choice, sched::PolicyChooser::first_choice());
  EXPECT_THAT(changes[0].reason, testing::HasSubstr("no other policy"));
}

TEST(Auto, ChoosesAnewWhenALinkIsLost) {
  auto profile = sim::small({{400'000, 3000, 6000}, {400'000, 3000, 6000}, {9'000'000, 3000, 6000}}, {4000, 300}, 20);
  const auto scheduler = make_auto(profile, true);
  sim::Options options{.steps = 120, .warmup_steps = 100};
  options.losses = {{60, 0}};
  ASSERT_TRUE(sim::simulate(*scheduler, profile, options));
  const auto changes = changes_of(*scheduler);
  EXPECT_TRUE(std::ranges::any_of(changes, [](const auto& change) {
    return change.step >= 60 && change.why == model::PolicyReason::kLinkLost &&
           change.reason.find("the loss of link 0") != std::string::npos;
  }));
}

}  // namespace
}  // namespace deft::select
