// The planner against all plans of small cases, and against bounds that no plan can beat.
//
// Whole buckets: up to 8 on 2 links in up to 3 steps, exactly. Buckets that are cut in any way: up to 8, by bounds.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/plan/planner.h"
#include "core/plan/timetable.h"
#include "tests/plan/exact_search.h"
#include "tests/plan/random_profile.h"
#include "tests/plan/update_rate_limit.h"

namespace deft::plan {
namespace {

// Runs all plans of a few whole buckets in up to two steps, one by one: no thought is shared with ExactSearch.
class Enumeration {
 public:
  Enumeration(const Problem& problem, std::uint32_t max_staleness) : problem_(problem), max_staleness_(max_staleness) {}

  // All plans that merge the steps up to each of `last_steps`.
  void run(const std::vector<std::uint32_t>& last_steps) {
    shortest_us_ = std::numeric_limits<double>::infinity();
    table_ = {};
    model::UpdateCycle& cycle = table_.plan.cycles.usual;
    cycle = {last_steps.back() + 1, {}};
    std::uint32_t first = 0;
    for (const auto last : last_steps) cycle.generations.push_back({first, last, 0}), first = last + 1;
    order_.resize(problem_.buckets() * last_steps.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    delay(0);
  }
  [[nodiscard]] double shortest_us() const { return shortest_us_; }
  [[nodiscard]] bool any_never_waits() const { return shortest_us_ <= problem_.compute_us() * (1 + 1e-7); }

 private:
  void delay(std::size_t generation) {
    auto& generations = table_.plan.cycles.usual.generations;
    if (generation == generations.size()) return orders();
    auto& g = generations[generation];
    for (g.apply_step = g.last_step + 1; g.apply_step <= g.last_step + 1 + max_staleness_; ++g.apply_step)
      delay(generation + 1);
  }
  void orders() {
    const auto& [period_steps, generations] = table_.plan.cycles.usual;
    if (generations.size() > 1 && generations[1].apply_step <= generations[0].apply_step) return;
    if (generations.back().apply_step >= generations.front().apply_step + period_steps) return;
    std::sort(order_.begin(), order_.end());
    do  // one order of all parts, cut anywhere: what is before the cut goes on the first link
      for (std::size_t cut = problem_.links() == 1 ? order_.size() : 0; cut <= order_.size(); ++cut) judge(cut);
    while (std::next_permutation(order_.begin(), order_.end()));
  }
  void judge(std::size_t cut) {
    table_.links.assign(problem_.links(), {});
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto bucket = static_cast<model::BucketIndex>(order_[i] % problem_.buckets());
      const auto generation = static_cast<std::uint32_t>(order_[i] / problem_.buckets());
      table_.links[i < cut ? 0 : 1].push_back({bucket, generation, 0, problem_.bucket(bucket).bytes, 0});
    }
    const auto result = evaluate(table_, problem_);
    if (result.runs) shortest_us_ = std::min(shortest_us_, result.step_us);
  }

  const Problem& problem_;
  std::uint32_t max_staleness_;
  Timetable table_;
  std::vector<std::size_t> order_;  // generation * buckets + bucket
  double shortest_us_ = 0;
};

// Every way to merge up to three steps: the last step of each generation.
const std::vector<std::vector<std::uint32_t>> kMerges = {{0}, {0, 1}, {0, 1, 2}, {0, 2}, {1, 2}, {1}, {2}};

double rate(const std::vector<std::uint32_t>& last_steps) {
  return static_cast<double>(last_steps.size()) / (last_steps.back() + 1);
}

RC_GTEST_PROP(ExactSearch, KnowsWhatTryingAllPlansOfThreeBucketsFinds, ()) {
  const auto profile = any_profile({.most_buckets = 3, .most_links = 2, .least_coverage = 0.5, .most_coverage = 3});
  const Problem problem(profile);
  const auto cap = *rc::gen::inRange(0U, 2U);
  ExactSearch exact(problem, cap);
  Enumeration all(problem, cap);
  double shortest_us = std::numeric_limits<double>::infinity();
  for (const auto& last_steps : kMerges) {
    if (last_steps.back() > 1) continue;
    all.run(last_steps);
    shortest_us = std::min(shortest_us, all.shortest_us());
    RC_ASSERT(exact.runs_without_waiting(last_steps) == all.any_never_waits());
  }
  RC_ASSERT(shortest_us >= exact.least_step_us(2) * (1 - 1e-6));
  RC_ASSERT(shortest_us <= exact.least_step_us(2) * (1 + 1e-6));
}

// No slack for jitter and nothing given away, as the brute force has none of it.
PlanLimits exact_limits(std::uint32_t max_staleness) {
  PlanLimits limits;
  limits.max_staleness_steps = max_staleness;
  limits.jitter_margin = 0;
  limits.rate_tolerance = 0;
  limits.bubble_tolerance = 0;
  return limits;
}

RC_GTEST_PROP(BruteForce, NoPlanOfWholeBucketsIsTwoPercentBetter, ()) {
  const auto profile = any_profile({.most_buckets = 8, .most_links = 2, .most_coverage = 3});
  const auto cap = *rc::gen::element(0U, 1U, 2U, 5U);
  const auto plan = find_plan(profile, exact_limits(cap));
  RC_ASSERT(plan.has_value());
  const Problem problem(profile);
  ExactSearch exact(problem, cap);
  RC_ASSERT(plan->step_us <= 1.02 * exact.least_step_us(cap == 0 ? 1 : 3));
  for (const auto& last_steps : kMerges) {
    const bool is_tried = cap > 0 || last_steps.size() == last_steps.back() + 1;  // synchronous: one update a step
    if (!is_tried || plan->updates_per_step() >= 0.98 * rate(last_steps)) continue;
    RC_ASSERT(exact.runs_without_waiting(last_steps) == false);
  }
}

// Up to 8 buckets cut in any way. With staleness the shortest step is compute, and no update ratio of up to three steps can be
// faster than the links' limit. The limit does not count the latencies of cuts, so an update ratio within 1 % of it is left out.
RC_GTEST_PROP(Bounds, NoUpdateRatioOfThreeStepsIsTwoPercentFaster, ()) {
  const auto profile = any_profile({.most_buckets = 8, .most_links = 2, .most_coverage = 2.9});
  const auto plan = find_plan(profile, exact_limits(16));
  RC_ASSERT(plan.has_value());
  const double limit = update_rate_limit(profile);
  double fastest = 0;
  for (const double rate : {1.0, 2.0 / 3, 1.0 / 2, 1.0 / 3})
    if (rate <= 0.99 * limit) fastest = std::max(fastest, rate);
  RC_ASSERT(plan->step_us <= 1.02 * plan->compute_us);
  RC_ASSERT(plan->updates_per_step() >= 0.98 * fastest);
}

// Synchronous plans, links without latency: then all links together are one whose time can be cut at will, and sending
// what forward needs first is optimal.
double shortest_synchronous_step(const Problem& problem) {
  const std::size_t count = problem.buckets();
  std::vector<double> left(count);
  std::vector<double> arrival(count);
  for (std::size_t b = 0; b < count; ++b) {
    double speed = 0;
    for (std::size_t l = 0; l < problem.links(); ++l) speed += 1 / problem.cost(l, b).us(problem.bucket(b).bytes);
    left[b] = 1 / speed;
  }
  double now = 0;
  std::size_t ready = 0;
  for (std::size_t done = 0; done < count;) {
    while (ready < count && problem.bucket(ready).ready_us <= now) ++ready;
    std::size_t urgent = ready;
    while (urgent > 0 && left[urgent - 1] <= 0) --urgent;
    if (urgent == 0) {
      now = problem.bucket(ready).ready_us;
      continue;
    }
    double& rest = left[urgent - 1];
    const double until = ready < count ? problem.bucket(ready).ready_us : std::numeric_limits<double>::infinity();
    const double us = std::min(rest, until - now);
    now += us;
    rest -= us;
    if (rest > 1e-9) continue;
    rest = 0;
    arrival[urgent - 1] = now;
    ++done;
  }
  double at = problem.compute_us();
  for (std::size_t b = count; b-- > 0;) at = std::max(at, arrival[b]) + problem.bucket(b).forward_us;
  return at - problem.forward_us();
}

RC_GTEST_PROP(Bounds, NoSynchronousPlanIsTwoPercentShorter, ()) {
  auto profile = any_profile({.most_buckets = 8, .most_links = 2});
  for (auto& link : profile.links) link.latency_us = 0;
  const auto plan = find_plan(profile, exact_limits(0));
  RC_ASSERT(plan.has_value());
  const double bound = shortest_synchronous_step(Problem(profile));
  RC_ASSERT(plan->step_us >= bound * (1 - 1e-6));
  RC_ASSERT(plan->step_us <= bound * 1.02);
}

}  // namespace
}  // namespace deft::plan
