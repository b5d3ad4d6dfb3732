// The builders of timetables, with limits and update ratios that the planner would not try.
#include "core/plan/schedule_builder.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/model/update_cycle.h"
#include "tests/plan/check_timetable.h"
#include "tests/plan/random_profile.h"

namespace deft::plan {
namespace {

PlanLimits any_limits() {
  PlanLimits limits;
  limits.max_staleness_steps = *rc::gen::inRange(0U, 9U);
  limits.max_generations = *rc::gen::inRange(2U, 5U);
  limits.bubble_tolerance = *rc::gen::element(0.0, 0.005, 0.1);
  return limits;
}

UpdateRatio any_ratio() {
  UpdateRatio ratio;
  ratio.steps = *rc::gen::inRange(1U, 9U);
  ratio.generations = *rc::gen::inRange(1U, ratio.steps + 1);
  return ratio;
}

model::Profile any_hard_profile() {
  return any_profile({.most_buckets = 10, .least_coverage = 0.1, .most_coverage = 12, .hard = true});
}

double any_part_us(const Problem& problem) { return *rc::gen::element(0.01, 0.1, 1.0) * problem.compute_us(); }

std::optional<Timetable> any_mixed(const Problem& problem, PlanLimits& limits) {
  limits.max_staleness_steps = std::max(1U, limits.max_staleness_steps);
  const auto stale = *rc::gen::container<std::vector<bool>>(problem.buckets(), rc::gen::arbitrary<bool>());
  return build_mixed(problem, limits, stale, any_ratio(), any_part_us(problem));
}

// Properties hold for a builder that finds nothing, too. The problems are the same in every run, because shares are judged.
TEST(Builders, findTimetablesForManyRatios) {
  const auto uniform = rc::gen::exec([] {
    const Problem problem(any_hard_profile());
    const auto limits = any_limits();
    return build_uniform(problem, limits, any_ratio(), any_part_us(problem)).has_value();
  });
  const auto mixed = rc::gen::exec([] {
    auto limits = any_limits();
    return any_mixed(Problem(any_hard_profile()), limits).has_value();
  });
  int uniform_found = 0, mixed_found = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    uniform_found += uniform(rc::Random(seed), 100).value() ? 1 : 0;
    mixed_found += mixed(rc::Random(seed), 100).value() ? 1 : 0;
  }
  EXPECT_GE(uniform_found, 100);
  EXPECT_GE(mixed_found, 150);
}

void check(std::optional<Timetable> table, const Problem& problem, const PlanLimits& limits) {
  RC_CLASSIFY(table.has_value(), "there is a timetable");
  if (!table) return;
  table->plan.bucket_bytes = problem.bucket_bytes();
  const std::string fault = fault_of(*table, problem.bucket_bytes(), problem.links());
  if (!fault.empty()) RC_FAIL(fault);
  RC_ASSERT(table->plan.max_staleness() <= limits.max_staleness_steps);
  RC_ASSERT(model::slots_needed(table->plan.cycles) <= limits.max_generations);
}

RC_GTEST_PROP(UniformBuilder, KeepsStalenessAndSlotsForAnyRatio, ()) {
  const Problem problem(any_hard_profile());
  const auto limits = any_limits();
  const double part_us = any_part_us(problem);
  for (int ratio = 0; ratio < 10; ++ratio) check(build_uniform(problem, limits, any_ratio(), part_us), problem, limits);
}

RC_GTEST_PROP(MixedBuilder, KeepsStalenessAndSlotsForAnyRatioAndAnyStaleBuckets, ()) {
  const Problem problem(any_hard_profile());
  auto limits = any_limits();
  auto table = any_mixed(problem, limits);  // raises a limit
  check(std::move(table), problem, limits);
}

}  // namespace
}  // namespace deft::plan
