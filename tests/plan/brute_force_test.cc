// The planner against all plans of small cases, and against bounds that no plan can beat.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/sched/knapsack_planner.h"
#include "core/sched/knapsack_problem.h"
#include "tests/plan/random_profile.h"

namespace deft::sched {
namespace {

struct Best {
  double step_us = std::numeric_limits<double>::infinity();  // of the shortest step
  double rate = 0;                                           // of the plans that do not wait, the fastest
};

// Every rhythm of at most three steps, every delay up to the cap, every whole bucket on every link in every order.
class BruteForce {
 public:
  BruteForce(const model::Profile& profile, std::uint32_t max_staleness)
      : problem_(profile),
        max_staleness_(max_staleness),
        order_(profile.buckets.size()),
        link_(profile.buckets.size()) {
    std::iota(order_.begin(), order_.end(), model::BucketIndex{0});
  }

  Best run() {
    do assign(0);
    while (std::next_permutation(order_.begin(), order_.end()));
    return best_;
  }

 private:
  void assign(std::size_t bucket) {
    if (bucket == link_.size()) return rhythms();
    for (link_[bucket] = 0; link_[bucket] < problem_.links(); ++link_[bucket]) assign(bucket + 1);
  }
  void rhythms() {
    for (std::uint32_t delay = 0; delay <= max_staleness_; ++delay)
      for (std::uint32_t steps = 1; steps <= (max_staleness_ == 0 ? 1U : 3U); ++steps)
        for (std::uint32_t cuts = 0; cuts < 1U << (steps - 1); ++cuts) judge(steps, cuts, delay);
  }
  void judge(std::uint32_t steps, std::uint32_t cuts, std::uint32_t delay) {
    model::Plan plan;
    plan.period_steps = steps;
    for (std::uint32_t first = 0, last = 0; last < steps; ++last)
      if (last + 1 == steps || (cuts >> last & 1U)) {
        plan.generations.push_back({first, last, last + 1 + delay});
        first = last + 1;
      }
    plan.links.resize(problem_.links());
    for (std::uint32_t g = 0; g < plan.generations.size(); ++g)
      for (const auto bucket : order_)
        plan.links[link_[bucket]].push_back({bucket, g, 0, problem_.bucket(bucket).bytes});
    const auto result = evaluate(plan, problem_);
    if (!result.runs) return;
    best_.step_us = std::min(best_.step_us, result.step_us);
    if (result.step_us <= problem_.compute_us() * (1 + 1e-6))
      best_.rate = std::max(best_.rate, plan.updates_per_step());
  }

  PlanProblem problem_;
  std::uint32_t max_staleness_;
  std::vector<model::BucketIndex> order_;
  std::vector<std::size_t> link_;
  Best best_;
};

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
  auto profile = any_profile({.most_buckets = 4, .most_links = 2, .most_coverage = 3});
  const auto cap = *rc::gen::inRange(0U, 3U);
  const auto plan = plan_knapsack(profile, exact_limits(cap));
  RC_ASSERT(plan.has_value());
  const Best best = BruteForce(profile, cap).run();
  RC_ASSERT(plan->step_us <= 1.02 * best.step_us);
  if (best.rate > 0) RC_ASSERT(plan->updates_per_step() >= 0.98 * best.rate);
}

// Up to 8 buckets cut in any way: where staleness is allowed no step is shorter than compute, and no rhythm of up to three
// steps can be faster than the links' limit. The limit knows no latency of cuts: a rhythm within 1 % of it is not counted.
RC_GTEST_PROP(Bounds, NoRhythmOfThreeStepsIsTwoPercentFaster, ()) {
  const auto profile = any_profile({.most_buckets = 8, .most_links = 2, .most_coverage = 2.9});
  const auto plan = plan_knapsack(profile, exact_limits(16));
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
double shortest_synchronous_step(const PlanProblem& problem) {
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
  const auto plan = plan_knapsack(profile, exact_limits(0));
  RC_ASSERT(plan.has_value());
  const double bound = shortest_synchronous_step(PlanProblem(profile));
  RC_ASSERT(plan->step_us >= bound * (1 - 1e-6));
  RC_ASSERT(plan->step_us <= bound * 1.02);
}

}  // namespace
}  // namespace deft::sched
