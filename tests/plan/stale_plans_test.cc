// Plans in which only the largest buckets are stale: what they promise, and that the simulator sees the same.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <set>

#include "core/model/update_cycle.h"
#include "core/plan/planner.h"
#include "core/plan/schedule_builder.h"
#include "core/sim/simulation.h"
#include "tests/base/random_cases.h"
#include "tests/plan/check_timetable.h"
#include "tests/plan/random_profile.h"

namespace deft::plan {
namespace {

PlanLimits any_limits(std::size_t buckets) {
  PlanLimits limits;
  limits.fresh_tolerance = *rc::gen::element(0.01, 0.05, 0.2);
  limits.stale_share = *rc::gen::element(0.3, 0.75, 1.0);
  limits.max_staleness_steps = *rc::gen::inRange(1U, 17U);
  limits.max_merged_steps = *rc::gen::inRange(1U, 17U);
  limits.max_generations = *rc::gen::inRange(2U, 9U);
  limits.joined.resize(buckets);
  for (std::size_t b = 1; b < buckets; ++b) limits.joined[b] = *rc::gen::weightedElement<bool>({{4, false}, {1, true}});
  return limits;
}

void check_promises(const Timetable& table, const model::Profile& profile, const PlanLimits& limits) {
  const model::Plan& plan = table.plan;
  std::vector<std::uint64_t> bytes;
  for (auto bucket = profile.buckets.rbegin(); bucket != profile.buckets.rend(); ++bucket)
    bytes.push_back(bucket->bytes);
  const std::string fault = fault_of(table, bytes, profile.links.size());
  if (!fault.empty()) RC_FAIL(fault);
  RC_ASSERT(plan.max_staleness() <= limits.max_staleness_steps);
  RC_ASSERT(plan.max_merged() <= limits.max_merged_steps);
  RC_ASSERT(plan.stale_share() <= limits.stale_share + 1e-9);
  RC_ASSERT(model::slots_needed(plan.cycles) <= limits.max_generations);
  for (model::BucketIndex b = 1; b < bytes.size(); ++b)
    if (limits.joined[b]) RC_ASSERT(plan.cycles.of(b) == plan.cycles.of(b - 1));
  const Evaluation result = evaluate(table, Problem(profile));
  RC_ASSERT(result.runs);
  RC_ASSERT(std::abs(result.step_us / plan.step_us - 1) < 1e-9);
}

model::Profile any_hard_profile() { return any_profile({.most_buckets = 20, .most_coverage = 4, .hard = true}); }

// The property below holds if no plan is found, too. The profiles are the same in every run, because shares are judged.
TEST(StalePlans, areFoundWithinMostLimits) {
  const auto is_found = rc::gen::exec([] {
    const auto profile = any_hard_profile();
    return stale_timetable(Problem(profile), any_limits(profile.buckets.size())).has_value();
  });
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) found += is_found(rc::Random(seed), 100).value() ? 1 : 0;
  EXPECT_GE(found, 50);
}

RC_GTEST_PROP(StalePlans, AreWithinTheLimitsAndRun, ()) {
  const auto profile = any_hard_profile();
  const auto limits = any_limits(profile.buckets.size());
  const Problem problem(profile);
  auto table = stale_timetable(problem, limits);
  if (!table) return;
  table->plan.bucket_bytes = problem.bucket_bytes();
  check_promises(*table, profile, limits);
}

// If a plan waits little enough, no block that is smaller than the largest fresh one is stale.
RC_GTEST_PROP(StalePlans, MakeTheLargestBucketsStale, ()) {
  const auto profile = any_profile({.most_buckets = 12, .least_coverage = 1, .most_coverage = 3});
  PlanLimits limits;
  limits.fresh_tolerance = 0.05;
  const Problem problem(profile);
  const auto table = stale_timetable(problem, limits);
  RC_PRE(table.has_value());
  const model::Plan* const plan = &table->plan;
  std::uint64_t largest_fresh = 0, smallest_stale = ~0ULL;
  for (model::BucketIndex b = 0; b < problem.buckets(); ++b) {
    auto& bound = plan->cycles.own.contains(b) ? smallest_stale : largest_fresh;
    bound = plan->cycles.own.contains(b) ? std::min(bound, problem.bucket(b).bytes)
                                         : std::max(bound, problem.bucket(b).bytes);
  }
  RC_ASSERT(smallest_stale >= largest_fresh);
}

// The fewest blocks, taken by size, that may be stale so that some timetable waits at most `enough_us`: all update ratios of up
// to eight steps and parts of many sizes are tried.
std::size_t fewest_stale_blocks(const Problem& problem, const PlanLimits& limits, double enough_us) {
  const Problem counted_on = problem.scaled(1, 1 + limits.jitter_margin);
  std::vector<std::size_t> by_size(problem.buckets());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::ranges::stable_sort(by_size, [&](auto a, auto b) { return problem.bucket(a).bytes > problem.bucket(b).bytes; });
  std::vector<bool> stale(problem.buckets());
  double stale_bytes = 0, all = 0;
  for (const auto bytes : problem.bucket_bytes()) all += static_cast<double>(bytes);
  for (std::size_t count = 1; count < problem.buckets(); ++count) {
    stale[by_size[count - 1]] = true;
    stale_bytes += static_cast<double>(problem.bucket(by_size[count - 1]).bytes);
    if (stale_bytes > limits.stale_share * all) break;
    for (std::uint32_t steps = 1; steps <= 8; ++steps)
      for (std::uint32_t updates = 1; updates <= steps; ++updates)
        for (const double part : {0.005, 0.015, 0.04, 0.15}) {
          const auto table = build_mixed(counted_on, limits, stale, {updates, steps}, part * counted_on.compute_us());
          if (table && evaluate(*table, problem).step_us <= enough_us && evaluate(*table, problem).runs) return count;
        }
  }
  return problem.buckets();
}

// The search tries only the fastest update ratios of each count of stale blocks, and skips some counts (5, 7). So it may miss a
// plan with fewer stale bytes that enumeration finds, but rarely.
TEST(StalePlans, enumerationRarelyFindsOneWithFewerStaleBytes) {
  const auto profiles = rc::gen::exec(
      [] { return any_profile({.most_buckets = 7, .most_links = 2, .least_coverage = 0.8, .most_coverage = 3}); });
  const auto limits = training_limits();
  std::size_t stale_plans = 0, missed = 0;
  constexpr std::size_t kProfiles = random_cases(100);
  // The same profiles in every run, because shares are judged.
  for (std::uint64_t seed = 1; seed <= kProfiles; ++seed) {
    const auto profile = profiles(rc::Random(seed), 100).value();
    const Problem problem(profile);
    const auto plan = find_plan(profile, limits);
    ASSERT_TRUE(plan.has_value());
    const double enough_us = (1 + limits.fresh_tolerance) * problem.compute_us();
    const std::size_t stale = plan->cycles.own.size();
    if (stale == 0 && plan->step_us <= enough_us) continue;  // all fresh
    const std::size_t fewest = fewest_stale_blocks(problem, limits, enough_us);
    if (fewest == problem.buckets()) {
      ASSERT_GT(plan->step_us, enough_us * (1 - 1e-9));
      continue;
    }
    ++stale_plans;
    if (plan->step_us > enough_us || stale > fewest) ++missed;
    ASSERT_LE(stale, problem.buckets() - 1);
  }
  EXPECT_GE(stale_plans * 10, kProfiles);
  EXPECT_LE(missed * 5, stale_plans) << "of " << stale_plans;
}

// The same model in smaller buckets: each is cut into `slices`, which cost together what it costs.
model::Profile in_slices(const model::Profile& profile, std::size_t slices) {
  model::Profile fine = profile;
  fine.buckets.clear();
  for (auto& link : fine.links) link.latency_us /= static_cast<double>(slices);
  for (const auto& bucket : profile.buckets)
    for (std::size_t i = 0; i < slices; ++i) {
      auto& slice = fine.buckets.emplace_back(bucket);
      slice.name += "." + std::to_string(i);
      slice.bytes = std::max<std::uint64_t>(1, bucket.bytes / slices);
      slice.forward_us /= static_cast<double>(slices), slice.backward_us /= static_cast<double>(slices);
      if (slice.comm_us) *slice.comm_us /= static_cast<double>(slices);
    }
  return fine;
}

// Thousands of buckets are planned in groups of neighbours. The plan is nearly as good as that of the few buckets which they were cut
// from, whether slices have dates of their own or not.
TEST(StalePlans, ofThousandsOfSlicesAreAsGoodAsOfFewBuckets) {
  const auto profiles =
      rc::gen::exec([] { return any_profile({.most_buckets = 25, .least_coverage = 1.3, .most_coverage = 4}); });
  std::size_t stale = 0;
  double worst = 0, sum = 0;
  constexpr std::size_t kProfiles = random_cases(20);
  // The same profiles in every run, because the bounds are close.
  for (std::uint64_t seed = 1; seed <= kProfiles; ++seed) {
    const auto few = profiles(rc::Random(seed), 100).value();
    const std::size_t slices = 1500 / few.buckets.size();
    const auto many = in_slices(few, slices);
    auto limits = training_limits();
    const auto plan_of_few = find_plan(few, limits);
    for (std::size_t b = 0; b < many.buckets.size(); ++b) limits.joined.push_back(seed % 2 == 0 && b % slices != 0);
    const auto table = find_timetable(many, limits);
    ASSERT_TRUE(plan_of_few && table);
    const model::Plan& plan = table->plan;
    EXPECT_EQ(fault_of(*table, Problem(many).bucket_bytes(), many.links.size()), "");
    EXPECT_LE(plan.max_staleness(), limits.max_staleness_steps);
    EXPECT_LE(plan.stale_share(), limits.stale_share + 1e-9);
    EXPECT_LE(model::slots_needed(plan.cycles), limits.max_generations);
    for (model::BucketIndex b = 1; b < many.buckets.size(); ++b)
      EXPECT_TRUE(!limits.joined[b] || plan.cycles.of(b) == plan.cycles.of(b - 1));
    const Evaluation result = evaluate(*table, Problem(many));
    EXPECT_TRUE(result.runs);
    EXPECT_NEAR(result.step_us / plan.step_us, 1, 1e-9);
    stale += plan.stale_share() > 0 ? 1 : 0;
    worst = std::max(worst, plan.step_us / plan_of_few->step_us);
    sum += plan.step_us / plan_of_few->step_us;
  }
  std::printf("step of slices over that of buckets: mean %.3f, worst %.3f\n", sum / kProfiles, worst);
  EXPECT_GE(stale, kProfiles / 2);
  EXPECT_LE(sum / kProfiles, 1);
  EXPECT_LE(worst, 1.03);
}

// How long a part may keep a link (due_queue.cc), in microseconds.
double longest_part_us(const model::Profile& profile) {
  const double latency_us = profile.link_model(0).latency_us, compute_us = profile.compute_us();
  return std::max({0.01 * compute_us, std::min(40 * latency_us, 0.1 * compute_us), 6 * latency_us});
}

// What is planned is what runs, but that what is urgent may come when two parts are on their way.
RC_GTEST_PROP(StalePlans, TheSimulatorSeesThePlannedTime, ()) {
  const auto profile = any_profile({.most_buckets = 12, .least_coverage = 0.8, .most_coverage = 3});
  auto setup = sim::setup_for(profile, "knapsack");
  setup.limits = training_limits();
  const auto plan = find_plan(profile, setup.limits);
  RC_ASSERT(plan.has_value());
  const auto outcome =
      sim::simulate(*sched::make_scheduler(setup).value(), profile, {.steps = 200, .warmup_steps = 60});
  if (!outcome) RC_FAIL(outcome.error().message());
  RC_ASSERT(outcome->step_us <= 1.05 * plan->step_us + 2 * longest_part_us(profile));
  RC_ASSERT(outcome->step_us >= 0.999 * profile.compute_us());
  RC_ASSERT(outcome->max_staleness_steps <= plan->max_staleness());
}

// One wide matrix with three quarters of the bytes, as convolutional networks end.
model::Profile wide_matrix(double coverage) {
  const std::vector<std::pair<const char*, std::uint64_t>> layers = {
      {"conv1", 2'560},     {"conv2", 147'712},    {"conv3", 147'712}, {"conv4", 147'712},
      {"wide", 12'849'152}, {"square", 4'198'400}, {"last", 41'000}};
  model::Profile profile;
  double bytes = 0;
  for (const auto& [name, size] : layers) bytes += static_cast<double>(size);
  for (const auto& [name, size] : layers) {
    const bool matrix = size > 1'000'000;
    profile.buckets.push_back({name, size, matrix ? 8'000.0 : 22'000.0, matrix ? 16'000.0 : 44'000.0, {}});
  }
  const double rate = bytes / (coverage * profile.compute_us());
  profile.links.push_back({"nic0", 150, {}, rate / 2});
  profile.links.push_back({"nic1", 150, {}, rate / 2});
  return profile;
}

TEST(StalePlans, spareAllButTheWideMatrix) {
  PlanLimits limits;
  limits.fresh_tolerance = 0.05;
  limits.stale_share = 0.75;
  limits.max_staleness_steps = 4;
  limits.max_generations = 4;
  const auto profile = wide_matrix(2);
  const auto plan = find_plan(profile, limits);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->step_us, 1.05 * plan->compute_us);
  ASSERT_EQ(plan->cycles.own.size(), 1U);
  EXPECT_EQ(plan->cycles.own.begin()->first, 2U);  // counted from the end of forward
  EXPECT_GE(plan->updates_per_step(), 0.9 * 0.5);
}

TEST(StalePlans, areNotMadeWhereFreshOnesWaitLittle) {
  PlanLimits limits;
  limits.fresh_tolerance = 0.05;
  const auto plan = find_plan(wide_matrix(0.3), limits);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->cycles.own.empty());
  EXPECT_EQ(plan->updates_per_step(), 1);
  EXPECT_EQ(plan->max_staleness(), 0U);
}

// Where too little may be late, the rest waits.
TEST(StalePlans, keepTheShareOfStaleBytes) {
  PlanLimits limits;
  limits.fresh_tolerance = 0.05;
  limits.stale_share = 0.5;
  const auto plan = find_plan(wide_matrix(2), limits);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->stale_share(), 0);
  EXPECT_GT(plan->step_us, 1.3 * plan->compute_us);
  limits.stale_share = 0.75;
  EXPECT_LT(find_plan(wide_matrix(6), limits)->step_us, find_plan(wide_matrix(6), {.max_staleness_steps = 0})->step_us);
}

}  // namespace
}  // namespace deft::plan
