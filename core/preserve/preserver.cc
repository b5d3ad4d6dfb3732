#include "core/preserve/preserver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace deft::preserve {
namespace {

Result<void> check(const Walk& walk) {
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

double expected(const model::Plan& plan, const Walk& walk, Merging merging, double noise) {
  if (!std::isfinite(noise)) return std::numeric_limits<double>::infinity();
  Position position(walk);
  for (const auto& generation : plan.generations) position.update(generation.merged(), merging, noise);
  return position.mean();
}

bool within(double ratio, double epsilon) { return std::abs(ratio - 1) <= epsilon; }

}  // namespace

std::uint32_t staleness_in_updates(const model::Plan& plan) {
  const auto& generations = plan.generations;
  const std::size_t count = generations.size();
  const auto apply_step = [&](std::size_t g) {
    return generations[g % count].apply_step + g / count * std::uint64_t{plan.period_steps};
  };
  std::uint32_t most = 0;
  for (std::size_t g = 0; g < count; ++g) {
    // Seen from far enough on, all generations before have one of an earlier cycle to count.
    const std::size_t cycles = generations[g].apply_step / plan.period_steps + 1;
    const std::size_t own = g + cycles * count;
    const std::uint64_t computed = generations[g].last_step + cycles * std::uint64_t{plan.period_steps};
    std::uint32_t between = 0;
    while (between < own && apply_step(own - 1 - between) > computed) ++between;
    most = std::max(most, between);
  }
  return most;
}

double staleness_noise(double pull, double delay_updates) {
  const double angle = pull * delay_updates;
  if (!(angle < std::numbers::pi / 2)) return std::numeric_limits<double>::infinity();
  return (1 + std::sin(angle)) / std::cos(angle);
}

Judgement judge(const model::Plan& plan, const Walk& walk, Merging merging, double epsilon) {
  Judgement out;
  Position original(walk);
  for (std::uint32_t step = 0; step < plan.period_steps; ++step) original.update(1, merging);
  out.expected_original = original.mean();
  // An update of k summed steps pulls k times as far.
  const double step = walk.learning_rate * (merging == Merging::kSum ? plan.max_merged() : 1);
  const double pull = step * walk.gradient_mean / (2 * (walk.state - walk.target));
  out.noise = staleness_noise(pull, staleness_in_updates(plan));
  out.expected_fresh = expected(plan, walk, merging, 1);
  out.expected_plan = expected(plan, walk, merging, out.noise);
  const auto ratio = [&](double loss) { return loss > 0 ? out.expected_original / loss : 1.0; };
  out.ratio = ratio(out.expected_plan);
  out.ratio_fresh = ratio(out.expected_fresh);
  out.accepted = within(out.ratio, epsilon);
  out.accepted_fresh = within(out.ratio_fresh, epsilon);
  return out;
}

Result<Preserved> preserve(const Planner& planner, const Walk& walk, Request request, Merging merging, double epsilon) {
  if (auto ok = check(walk); !ok) return tl::unexpected(ok.error());
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
