// Which policy `auto` chooses, tries and keeps, if it is told the forecasts and plays the steps.
#include "core/sched/policy_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sched/told_selector.h"

namespace deft::sched {
namespace {

// A chooser that is told how long steps take under each policy.
class Chooser : public testing::Test {
 protected:
  Chooser() {
    sched::Setup setup = auto_setup({4096, 4096}, 2);
    setup.selector = selector;
    selector->told = {{urgent, 5000}, {other, 6000}, {first, 9000}};
    chooser.emplace(setup, first);
    profile.buckets = {{"b1", 4096, 1000, 2000, {}}, {"b0", 4096, 1000, 2000, {}}};
    profile.links = {{"l0", 10, {}, 100}, {"l1", 10, {}, 100}};
  }

  // Plays `count` steps, in which a step of the policy in force takes as long as `takes_us` says.
  void play(std::uint64_t count) {
    for (const std::uint64_t end = step + count; step < end; ++step) {
      if (step >= 8 && chooser->wants_profile(step)) chooser->profile_measured(profile, step);
      chooser->stage_began(Stage::kForward, step, now, waits.before_forward_us);
      chooser->stage_began(Stage::kBackward, step, now + 100, waits.in_forward_us);
      if (auto change = chooser->take_change()) {
        if (change->choice != in_force) chooser->in_force(in_force = change->choice, step);
        changes.push_back(*std::move(change));
      }
      now += takes_us[in_force.policy];
    }
  }

  const PolicyChoice first = PolicyChooser::first_choice(), urgent{"bytescheduler", 0}, other{"p3", 0};
  std::shared_ptr<ToldSelector> selector = std::make_shared<ToldSelector>();
  std::optional<PolicyChooser> chooser;
  model::Profile profile;
  std::map<std::string, TimeUs> takes_us = {{"fifo", 9000}, {"bytescheduler", 5000}, {"p3", 6000}};
  PolicyChoice in_force = first;
  std::vector<PolicyChange> changes;
  std::uint64_t step = 0;
  TimeUs now = 0;
  struct {
    TimeUs before_forward_us = 0, in_forward_us = 500;
  } waits;  // of a step
};

TEST_F(Chooser, KeepsWhatIsBetterThanBefore) {
  play(100);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].choice, urgent);
  EXPECT_EQ(*changes[0].before_us, 9000);
  EXPECT_EQ(changes[0].forecasts.size(), 3u);
  EXPECT_EQ(changes[1].choice, urgent);
  EXPECT_EQ(*changes[1].after_us, 5000);
  EXPECT_EQ(selector->asked, 1);
  EXPECT_TRUE(selector->last->overlaps_forward);
}

TEST_F(Chooser, GoesBackFromWhatIsNoBetterAndTriesTheNextBest) {
  takes_us = {{"fifo", 9000}, {"bytescheduler", 8950}, {"p3", 6000}};
  play(100);
  std::vector<PolicyChoice> choices;
  for (const auto& change : changes) choices.push_back(change.choice);
  EXPECT_EQ(choices, (std::vector{urgent, first, other, other}));
  std::vector<model::PolicyReason> reasons;
  for (const auto& change : changes) reasons.push_back(change.why);
  using model::PolicyReason;
  EXPECT_EQ(reasons, (std::vector{PolicyReason::kForecast, PolicyReason::kNoBetter, PolicyReason::kForecast,
                                  PolicyReason::kConfirmed}));
  EXPECT_THAT(changes[1].reason, testing::HasSubstr("bytescheduler was no better"));
}

// Forecasts err by some percent, so the second best may be the best.
TEST_F(Chooser, TriesAlsoWhatTheForecastCannotTellFromTheBest) {
  selector->told = {{urgent, 5000}, {other, 5140}, {first, 9000}};
  takes_us = {{"fifo", 9000}, {"bytescheduler", 5000}, {"p3", 4880}};
  play(200);
  std::vector<PolicyChoice> choices;
  for (const auto& change : changes) choices.push_back(change.choice);
  EXPECT_EQ(choices, (std::vector{urgent, urgent, other, other}));
  EXPECT_THAT(changes[2].reason, testing::HasSubstr("too close to know"));
  EXPECT_EQ(selector->asked, 1) << "nothing has moved";
}

// What launches cost the processors is not in a forecast.
TEST_F(Chooser, OfEqualForecastsTriesTheOneWithTheFewestLaunchesFirst) {
  const PolicyChoice third{"usbyte", 0};
  selector->told = {{urgent, 5000, 100}, {other, 5010, 12}, {third, 5049, 40}, {first, 9000, 4}};
  takes_us = {{"fifo", 9000}, {"bytescheduler", 9000}, {"p3", 9000}, {"usbyte", 5000}};
  play(100);
  std::vector<PolicyChoice> choices;
  for (const auto& change : changes) choices.push_back(change.choice);
  ASSERT_GE(choices.size(), 3u);
  EXPECT_EQ(std::vector(choices.begin(), choices.begin() + 3), (std::vector{other, first, third}));
}

TEST_F(Chooser, FewerLaunchesDoNotMakeUpForAWorseForecast) {
  selector->told = {{urgent, 5000, 100}, {other, 5060, 12}, {first, 9000, 4}};
  play(100);
  EXPECT_EQ(changes.front().choice, urgent);
}

TEST_F(Chooser, TriesTheNextCloseOneAfterItHasGoneBack) {
  const PolicyChoice third{"usbyte", 0};
  selector->told = {{urgent, 5000}, {other, 5100}, {third, 5120}, {first, 9000}};
  takes_us = {{"fifo", 9000}, {"bytescheduler", 5000}, {"p3", 5100}, {"usbyte", 4800}};
  play(200);
  EXPECT_EQ(in_force, third);
  EXPECT_EQ(changes.back().why, model::PolicyReason::kConfirmed);
}

TEST_F(Chooser, WhatWasNotPromisedMustBeClearlyBetter) {
  selector->told = {{urgent, 5000}, {other, 5140}, {first, 9000}};
  takes_us = {{"fifo", 9000}, {"bytescheduler", 5000}, {"p3", 4920}};
  play(200);
  EXPECT_EQ(in_force, urgent);
  EXPECT_EQ(changes.back().why, model::PolicyReason::kNoBetter);
}

TEST_F(Chooser, IfWorkersDoNotWaitOnlyAPromiseIsTried) {
  selector->told = {{first, 5000}, {urgent, 5000}, {other, 5100}};
  takes_us = {{"fifo", 5000}, {"bytescheduler", 4000}, {"p3", 4000}};
  waits.in_forward_us = 90;
  play(200);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].why, model::PolicyReason::kKept);
  EXPECT_EQ(in_force, first);
}

TEST_F(Chooser, DoesNotTryWhatTheForecastTellsFromTheBest) {
  selector->told = {{urgent, 5000}, {other, 5160}, {first, 9000}};
  takes_us = {{"fifo", 9000}, {"bytescheduler", 5000}, {"p3", 4000}};
  play(200);
  EXPECT_EQ(in_force, urgent);
  EXPECT_EQ(changes.size(), 2u);
}

TEST_F(Chooser, RestsWhenNothingWasBetterAndEachTimeLonger) {
  takes_us = {{"fifo", 9000}, {"bytescheduler", 9500}, {"p3", 9100}};
  play(70);
  EXPECT_EQ(in_force, first);
  EXPECT_EQ(changes.size(), 4u);
  profile.links[0].bytes_per_us = 50;  // worth another look, but not at once
  const std::uint64_t settled = changes.back().step;
  while (selector->asked < 2 && step < 500) play(1);
  EXPECT_GE(step, settled + PolicyChooser::kRestSteps);
  EXPECT_LT(step, 200u);
}

TEST_F(Chooser, LooksAgainWhenTheNetworkHasMovedAndStaysIfItWasRight) {
  play(100);
  play(60);
  EXPECT_EQ(selector->asked, 1) << "nothing has moved";
  profile.links[0].bytes_per_us = 50;
  play(60);
  EXPECT_EQ(selector->asked, 2);
  EXPECT_EQ(changes.back().choice, urgent);
  EXPECT_EQ(changes.back().why, model::PolicyReason::kKept);
  EXPECT_THAT(changes.back().reason, testing::HasSubstr("throughput"));
}

TEST_F(Chooser, ComparesWithTheTunedChoiceThatIsInForce) {
  PolicyChoice tuned = urgent;
  tuned.sizes = LaunchSizes{256 << 10, 1 << 20};
  selector->told = {{tuned, 5000}, {first, 9000}};
  play(100);
  ASSERT_EQ(in_force, tuned);
  profile.links[0].bytes_per_us = 50;
  play(60);
  ASSERT_EQ(selector->asked, 2);
  EXPECT_EQ(std::ranges::count(selector->last->candidates, tuned), 1);
}

TEST_F(Chooser, OtherSizesMakeItLookAgain) {
  play(100);
  EXPECT_EQ(selector->asked, 1);
  chooser->sizes_changed({8 << 10, 32 << 10});
  play(60);
  EXPECT_EQ(selector->asked, 2);
  EXPECT_EQ(selector->last->setup.partition_bytes, 8u << 10);
  EXPECT_EQ(selector->last->setup.credit_bytes, 32u << 10);
}

// The trial would compare steps on one link with steps on two.
TEST_F(Chooser, LooksAgainAtOnceWhereALinkIsLostInTheCourseOfATrial) {
  while (changes.empty()) play(1);
  ASSERT_EQ(in_force, urgent);
  play(3);
  ASSERT_FALSE(chooser->wants_profile(step)) << "the trial goes on";
  chooser->link_lost(1);
  EXPECT_TRUE(chooser->wants_profile(step));
  takes_us = {{"fifo", 18000}, {"bytescheduler", 10000}, {"p3", 9000}};
  selector->told = {{other, 9500}, {urgent, 10500}, {first, 18000}};
  play(60);
  EXPECT_EQ(selector->asked, 2);
  EXPECT_EQ(in_force, other);
  EXPECT_EQ(*changes.back().before_us, 10000) << "of the steps since then";
  for (const auto& change : changes) EXPECT_THAT(change.reason, testing::Not(testing::HasSubstr("was no better")));
}

// Its trial was to compare it with steps of before the loss.
TEST_F(Chooser, ADecisionThatIsNotInForceYetIsDroppedWhereALinkIsLostOrTheUserSetsSizes) {
  play(8);
  chooser->profile_measured(profile, step);
  const auto decides = [&] {
    chooser->stage_began(Stage::kForward, step++, now += 9000, 0);
    return PolicyChooser(*chooser).take_change().has_value();
  };
  while (!decides()) ASSERT_LT(step, 60u);
  PolicyChooser resized(*chooser);
  resized.sizes_changed({8 << 10, 32 << 10});
  EXPECT_FALSE(resized.take_change());
  chooser->link_lost(1);
  EXPECT_FALSE(chooser->take_change());
  EXPECT_TRUE(chooser->wants_profile(step)) << "it looks again";
  takes_us = {{"fifo", 18000}, {"bytescheduler", 10000}, {"p3", 9000}};
  selector->told = {{other, 9500}, {urgent, 10500}, {first, 18000}};
  play(60);
  EXPECT_EQ(in_force, other);
}

TEST_F(Chooser, TheUsersChoiceStaysUntilTheUserGivesItBack) {
  chooser->pin(other);
  play(60);
  EXPECT_EQ(in_force, other);
  EXPECT_EQ(selector->asked, 0);
  chooser->pin({});
  play(60);
  EXPECT_EQ(selector->asked, 1);
  EXPECT_EQ(in_force, urgent);
}

TEST_F(Chooser, SizesThatTheUserHasSetStayAlsoWhereTheyAreTheDefaults) {
  for (const bool has_user_sizes : {false, true}) {
    sched::Setup setup;
    setup.buckets = auto_setup({4096, 4096}, 2).buckets;
    setup.links = auto_setup({}, 2).links;
    setup.selector = selector;
    setup.has_user_sizes = has_user_sizes;
    chooser.emplace(setup, first);
    chooser->profile_measured(profile, 0);
    EXPECT_EQ(selector->last->tunes_sizes, !has_user_sizes);
  }
}

TEST_F(Chooser, SeesThatWorkersWaitBeforeForward) {
  waits = {.before_forward_us = 700, .in_forward_us = 0};
  play(20);
  ASSERT_TRUE(selector->last);
  EXPECT_FALSE(selector->last->overlaps_forward);
}

}  // namespace
}  // namespace deft::sched
