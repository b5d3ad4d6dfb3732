#include "core/preserve/preserver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

namespace deft::preserve {
namespace {

using Cycle = std::vector<model::PlanGeneration>;

double expected(const Cycle& cycle, const Walk& walk, Merging merging, double noise) {
  if (!std::isfinite(noise)) return std::numeric_limits<double>::infinity();
  Position position(walk);
  for (const auto& generation : cycle) position.update(generation.merged(), merging, noise);
  return position.mean();
}

// The published condition bounds the ratio above, too; but a plan that is expected to train better is no worse.
bool is_no_worse(double ratio, double epsilon) { return ratio >= 1 - epsilon; }

// Each different one of the plan's buckets, once.
std::vector<Cycle> different_cycles(const model::Plan& plan) {
  std::vector<Cycle> cycles{plan.generations};
  for (const auto& [bucket, own] : plan.own_generations)
    if (std::find(cycles.begin(), cycles.end(), own) == cycles.end()) cycles.push_back(own);
  return cycles;
}

std::uint32_t staleness_in_updates(const Cycle& cycle, std::uint32_t period_steps) {
  const std::size_t count = cycle.size();
  const auto apply_step = [&](std::size_t g) {
    return cycle[g % count].apply_step + g / count * std::uint64_t{period_steps};
  };
  std::uint32_t most = 0;
  for (std::size_t g = 0; g < count; ++g) {
    // Seen from far enough on, all generations before have one of an earlier cycle to count.
    const std::size_t cycles = cycle[g].apply_step / period_steps + 1;
    const std::size_t own = g + cycles * count;
    const std::uint64_t computed = cycle[g].last_step + cycles * std::uint64_t{period_steps};
    std::uint32_t between = 0;
    while (between < own && apply_step(own - 1 - between) > computed) ++between;
    most = std::max(most, between);
  }
  return most;
}

double ratio_of(double original, double planned) { return planned > 0 ? original / planned : 1.0; }

Judgement judge_cycle(const Cycle& cycle, std::uint32_t period_steps, double original, const Walk& walk,
                      Merging merging, double epsilon) {
  Judgement out;
  out.expected_original = original;
  std::uint32_t merged = 0;
  for (const auto& generation : cycle) merged = std::max(merged, generation.merged());
  // An update of k summed steps pulls k times as far.
  const double step = walk.learning_rate * (merging == Merging::kSum ? merged : 1);
  const double pull = step * walk.gradient_mean / (2 * (walk.state - walk.target));
  out.noise = staleness_noise(pull, staleness_in_updates(cycle, period_steps));
  out.expected_fresh = expected(cycle, walk, merging, 1);
  out.expected_plan = expected(cycle, walk, merging, out.noise);
  out.ratio = ratio_of(original, out.expected_plan);
  out.ratio_fresh = ratio_of(original, out.expected_fresh);
  out.accepted = is_no_worse(out.ratio, epsilon);
  out.accepted_fresh = is_no_worse(out.ratio_fresh, epsilon);
  return out;
}

}  // namespace

std::uint32_t staleness_in_updates(const model::Plan& plan) {
  std::uint32_t most = 0;
  for (const Cycle& cycle : different_cycles(plan))
    most = std::max(most, staleness_in_updates(cycle, plan.period_steps));
  return most;
}

double staleness_noise(double pull, double delay_updates) {
  const double angle = pull * delay_updates;
  if (!(angle < std::numbers::pi / 2)) return std::numeric_limits<double>::infinity();
  return (1 + std::sin(angle)) / std::cos(angle);
}

Judgement judge(const model::Plan& plan, const Walk& walk, Merging merging, double epsilon) {
  Position original(walk);
  for (std::uint32_t step = 0; step < plan.period_steps; ++step) original.update(1, merging);
  std::optional<Judgement> worst;
  for (const Cycle& cycle : different_cycles(plan)) {
    const Judgement one = judge_cycle(cycle, plan.period_steps, original.mean(), walk, merging, epsilon);
    if (!worst || one.ratio < worst->ratio) worst = one;
  }
  return *worst;
}

Result<void> check_walk(const Walk& walk) {
  const auto refuse = [](const char* what) {
    return fail(ErrorKind::kInvalid, what, "the Preserver cannot judge a plan");
  };
  const auto sane = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!std::isfinite(walk.state) || !std::isfinite(walk.target)) return refuse("the loss is no finite number");
  if (walk.target < 0) return refuse("the target of the loss is negative");
  if (walk.state <= walk.target) return refuse("the loss is not above its target");
  if (!sane(walk.learning_rate)) return refuse("the learning rate is no finite number of 0 or more");
  if (!sane(walk.gradient_mean) || !sane(walk.gradient_deviation))
    return refuse("the gradient's statistics are no finite numbers of 0 or more");
  if (!(std::isfinite(walk.batch) && walk.batch > 0)) return refuse("the batch is not above zero");
  return {};
}

Result<Preserved> preserve(const Planner& planner, const Walk& walk, Request request, Merging merging, double epsilon) {
  if (auto ok = check_walk(walk); !ok) return tl::unexpected(ok.error());
  for (unsigned attempt = 1;; ++attempt) {
    auto plan = planner(request);
    if (!plan) return tl::unexpected(plan.error());
    const Judgement judgement = judge(*plan, walk, merging, epsilon);
    if (judgement.accepted || attempt > kMostAttempts) return Preserved{std::move(*plan), judgement, request, attempt};
    const std::uint32_t staleness = plan->max_staleness();
    if (judgement.accepted_fresh && staleness > 0)
      request.max_staleness_steps = std::min(request.max_staleness_steps, staleness) - 1;
    else
      request.capacity *= kMoreCapacity;
  }
}

}  // namespace deft::preserve
