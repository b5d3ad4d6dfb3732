#include "core/plan/planner.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "core/plan/problem.h"
#include "tests/plan/check_timetable.h"
#include "tests/plan/random_profile.h"
#include "tests/plan/update_rate_limit.h"

namespace deft::plan {
namespace {

std::vector<std::uint64_t> bucket_bytes(const model::Profile& profile) {
  std::vector<std::uint64_t> out;
  for (auto bucket = profile.buckets.rbegin(); bucket != profile.buckets.rend(); ++bucket) out.push_back(bucket->bytes);
  return out;
}

model::Plan planned(const model::Profile& profile, const PlanLimits& limits = {}) {
  auto table = find_timetable(profile, limits);
  RC_ASSERT(table.has_value());
  const std::string fault = fault_of(*table, bucket_bytes(profile), profile.links.size());
  if (!fault.empty()) RC_FAIL(fault);
  return std::move(table->plan);
}

RC_GTEST_PROP(Planner, NeverWaitsAndUpdatesNearlyAsOftenAsTheLinksPermit, ()) {
  const auto most = *rc::gen::weightedElement<std::size_t>({{20, 8}, {20, 30}, {20, 120}, {1, 2000}});
  const auto profile = any_profile({.most_buckets = most});
  const auto plan = planned(profile);
  RC_ASSERT(plan.step_us <= 1.03 * plan.compute_us);
  RC_ASSERT(plan.updates_per_step() >= 0.8 * update_rate_limit(profile));
  RC_ASSERT(plan.updates_per_step() <= update_rate_limit(profile) * (1 + 1e-6));
}

RC_GTEST_PROP(Planner, KeepsTheCaps, ()) {
  const auto profile = any_profile({.most_buckets = 20, .hard = true});
  PlanLimits limits = *rc::gen::arbitrary<bool>() ? training_limits() : PlanLimits{};
  limits.max_staleness_steps = *rc::gen::inRange(0U, 6U);
  limits.max_merged_steps = *rc::gen::inRange(1U, 6U);
  limits.max_generations = *rc::gen::inRange(2U, 9U);
  const auto plan = planned(profile, limits);
  RC_ASSERT(plan.max_staleness() <= limits.max_staleness_steps);
  RC_ASSERT(plan.max_merged() <= limits.max_merged_steps);
  RC_ASSERT(plan.stale_share() <= limits.stale_share + 1e-9);
  if (limits.max_staleness_steps == 0) RC_ASSERT(plan.updates_per_step() == 1.0);
}

// What training gets: a plan in which updates are fresh, or stale ones that shorten the step by so much that it is worth it.
RC_GTEST_PROP(Planner, InTrainingStaleUpdatesShortenTheStepByMuch, ()) {
  const auto profile = any_profile({.most_buckets = 20, .hard = true});
  const auto limits = training_limits();
  const auto plan = planned(profile, limits);
  auto fresh_limits = limits;
  fresh_limits.max_staleness_steps = 0;
  const auto fresh = planned(profile, fresh_limits);
  RC_ASSERT(plan.step_us <= fresh.step_us * (1 + 1e-9));
  if (fresh.step_us <= (1 + limits.fresh_tolerance) * fresh.compute_us) RC_ASSERT(plan.stale_share() == 0.0);
  if (plan.is_late()) RC_ASSERT(plan.step_us <= (1 - limits.least_stale_gain) * fresh.step_us);
  RC_CLASSIFY(plan.stale_share() > 0);
}

// In the region where fresh updates would wait and the largest buckets alone relieve the links, plans must use that. The
// profiles are the same in every run, so the bounds are close to the values that were seen.
TEST(Planner, inTrainingMakesStalePlansWhereTheLinksAreShort) {
  const auto profiles =
      rc::gen::exec([] { return any_profile({.most_buckets = 20, .least_coverage = 1.3, .most_coverage = 3}); });
  const auto limits = training_limits();
  auto fresh_limits = limits;
  fresh_limits.max_staleness_steps = 0;
  std::size_t stale = 0, waiting = 0;
  double waits = 0, fresh_waits = 0;  // sums of shares of compute
  constexpr std::size_t kProfiles = 100;
  for (std::uint64_t seed = 1; seed <= kProfiles; ++seed) {
    const auto profile = profiles(rc::Random(seed), 100).value();
    const auto plan = find_plan(profile, limits);
    const auto fresh = find_plan(profile, fresh_limits);
    ASSERT_TRUE(plan && fresh);
    stale += plan->stale_share() > 0 ? 1 : 0;
    waiting += plan->step_us > 1.1 * plan->compute_us ? 1 : 0;
    waits += plan->step_us / plan->compute_us - 1;
    fresh_waits += fresh->step_us / fresh->compute_us - 1;
  }
  EXPECT_GE(stale, 95U);
  EXPECT_LE(waiting, 35U);
  EXPECT_LE(waits, 0.1 * fresh_waits) << "of " << fresh_waits;
}

RC_GTEST_PROP(Planner, MoreCapacityNeverMeansFewerUpdates, ()) {
  const auto profile = any_profile({.most_buckets = 20});
  PlanLimits limits;
  const double before = planned(profile, limits).updates_per_step();
  limits.capacity = 1.5;
  RC_ASSERT(planned(profile, limits).updates_per_step() >= before * (1 - limits.rate_tolerance) - 1e-9);
}

RC_GTEST_PROP(Planner, TheSameProfileGivesTheSamePlan, ()) {
  const auto profile = any_profile({.most_buckets = 20, .hard = true});
  RC_ASSERT(planned(profile).hash() == planned(profile).hash());
  RC_ASSERT(planned(profile, training_limits()).hash() == planned(profile, training_limits()).hash());
}

TEST(Planner, medianUpdateRateIsWithinSevenPercentOfTheLimit) {
  std::vector<double> shares;
  rc::check([&] {
    const auto profile = any_profile({.most_buckets = *rc::gen::element<std::size_t>(8, 30, 200, 1000)});
    shares.push_back(planned(profile).updates_per_step() / update_rate_limit(profile));
  });
  ASSERT_GE(shares.size(), 100U);
  std::nth_element(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2), shares.end());
  EXPECT_GE(shares[shares.size() / 2], 0.93);
}

TEST(Planner, appliesAtOnceWhereNothingHasToWait) {
  model::Profile profile;
  for (int i = 0; i < 10; ++i) profile.buckets.push_back({"b" + std::to_string(i), 1000, 1000, 2000, {}});
  profile.links.push_back({"nic", 1, {}, 100.0});  // 11 us a bucket
  const auto plan = find_plan(profile, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->max_staleness(), 0U);
  EXPECT_EQ(plan->updates_per_step(), 1);
  EXPECT_EQ(find_timetable(profile, {})->parts(), 10U);
  EXPECT_LT(plan->step_us, plan->compute_us * 1.001);
}

TEST(Planner, cutsWhatIsLargerThanAnyCapacity) {
  model::Profile profile;
  profile.buckets.push_back({"small", 1000, 100, 200, {}});
  profile.buckets.push_back({"huge", 100'000'000, 100, 200, {}});  // 100 ms on each link, compute 0.6 ms
  profile.links.push_back({"a", 10, {}, 1000.0});
  profile.links.push_back({"b", 10, {}, 1000.0});
  PlanLimits limits;
  limits.max_merged_steps = 256;
  limits.max_staleness_steps = 256;
  const auto plan = find_plan(profile, limits);
  ASSERT_TRUE(plan);
  EXPECT_GE(plan->updates_per_step(), 0.8 * update_rate_limit(profile));
  EXPECT_LE(plan->step_us, 1.03 * plan->compute_us);
}

TEST(Planner, namesWhatItRefuses) {
  const model::Profile empty;
  EXPECT_NE(find_plan(empty, {}).error().message().find("buckets"), std::string::npos);
  model::Profile profile;
  profile.buckets.push_back({"b", 8, 1, 1, {}});
  profile.links.push_back({"l", 1, {}, 1.0});
  const auto refused = [&](PlanLimits limits) { return find_plan(profile, limits).error().message(); };
  EXPECT_NE(refused({.max_merged_steps = 0}).find("max_merged_steps"), std::string::npos);
  EXPECT_NE(refused({.max_generations = 1}).find("max_generations"), std::string::npos);
  EXPECT_NE(refused({.jitter_margin = -1}).find("jitter_margin"), std::string::npos);
  EXPECT_NE(refused({.capacity = 0.5}).find("capacity"), std::string::npos);
}

TEST(PlanHash, changesWithEveryDecision) {
  model::Plan plan{model::UpdateCycles{}, 1, 1, {8}};
  const auto hash = plan.hash();
  const auto changed = [&](auto change) {
    model::Plan other = plan;
    change(other);
    return other.hash() != hash;
  };
  EXPECT_TRUE(changed([](auto& p) { p.cycles.usual.period_steps = 2; }));
  EXPECT_TRUE(changed([](auto& p) { p.cycles.usual.generations[0].apply_step = 2; }));
  EXPECT_TRUE(changed([](auto& p) { p.cycles.own[0] = {1, {{0, 0, 3}}}; }));
  EXPECT_FALSE(changed([](auto& p) { p.step_us = 7; }));
}

TEST(CyclesCheck, namesWhatIsWrong) {
  const model::UpdateCycles good{{2, {{0, 0, 2}, {1, 1, 3}}}};
  EXPECT_TRUE(model::check_cycles(good, 2));
  const auto says = [&](auto change) {
    model::UpdateCycles cycles = good;
    change(cycles);
    const auto ok = model::check_cycles(cycles, 2);
    return ok ? std::string("fine") : ok.error().message();
  };
  using testing::StartsWith;
  EXPECT_THAT(says([](auto&) {}), "fine");
  EXPECT_THAT(says([](auto& c) { c.usual.generations[0].first_step = 1; }),
              StartsWith("plan.generations[0].first_step: 1"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations[1].last_step = 0; }), StartsWith("plan.generations[1].last_step"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations[0].apply_step = 0; }),
              StartsWith("plan.generations[0].apply_step: before"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations[1].apply_step = 2; }),
              StartsWith("plan.generations[1].apply_step: not"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations[1].apply_step = 4; }),
              StartsWith("plan.generations[1].apply_step: not"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations[1].apply_step = 1 << 30; }),
              StartsWith("plan.generations[1].apply_step: 10"));
  EXPECT_THAT(says([](auto& c) { c.usual.generations.clear(); }), StartsWith("plan.generations: there are none"));
  EXPECT_THAT(says([](auto& c) { c.usual.period_steps = 0; }), StartsWith("plan.period_steps: 0"));
  EXPECT_THAT(says([](auto& c) { c.usual.period_steps = 3; }), StartsWith("plan.period_steps: 3"));
  EXPECT_THAT(says([](auto& c) { c.own[2] = {2, {{0, 1, 2}}}; }), StartsWith("plan.own_generations: of bucket 2"));
  EXPECT_THAT(says([](auto& c) { c.own[1] = {2, {{0, 0, 1}}}; }), testing::HasSubstr("plan.period_steps: 2"));
}

TEST(TimetableCheck, findsWhatIsWrong) {
  const Timetable good{{model::UpdateCycles{{2, {{0, 0, 2}, {1, 1, 3}}}}, 0, 0, {8, 8}},
                       {{{0, 0, 0, 8}, {1, 0, 0, 8}, {0, 1, 0, 4}, {0, 1, 4, 4}, {1, 1, 0, 8}}}};
  const auto says = [&](auto change) {
    Timetable table = good;
    change(table.links);
    return fault_of(table, {8, 8}, 1);
  };
  EXPECT_EQ(says([](auto&) {}), "");
  EXPECT_NE(says([](auto& l) { l[0].pop_back(); }), "");
  EXPECT_NE(says([](auto& l) { l[0][3].offset = 0; }), "");
  EXPECT_NE(says([](auto& l) { l[0][2].offset = 2; }), "");
  EXPECT_NE(says([](auto& l) { l[0][1].bytes = 9; }), "");
  EXPECT_NE(says([](auto& l) { l[0][1].bytes = 0; }), "");
  EXPECT_NE(says([](auto& l) { l[0][0].bucket = 9; }), "");
  EXPECT_NE(says([](auto& l) { l[0][0].generation = 2; }), "");
  EXPECT_NE(says([](auto& l) { l.push_back({}); }), "");
}

}  // namespace
}  // namespace deft::plan
