#include "core/preserve/preserver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace deft::preserve {
namespace {

using Cycle = std::vector<model::PlanGeneration>;

double expected(const Cycle& cycle, const Walk& walk, MergeScale merging, double noise) {
  if (!std::isfinite(noise)) return std::numeric_limits<double>::infinity();
  Position position(walk);
  for (const auto& generation : cycle) position.update(generation.merged(), merging, noise);
  return position.mean();
}

// The published condition bounds the ratio above, too; but a plan that is expected to train better is no worse.
bool is_no_worse(double ratio, double epsilon) { return ratio >= 1 - epsilon; }

struct Part {
  Cycle cycle;
  double share;  // of all bytes
};

// The plan's different cycles; a plan without bytes counts them alike.
std::vector<Part> parts_of(const model::Plan& plan) {
  std::vector<Part> parts;
  double all = 0;
  const auto add = [&](const Cycle& cycle, double bytes) {
    all += bytes;
    const auto known = std::ranges::find(parts, cycle, &Part::cycle);
    if (known == parts.end())
      parts.push_back({cycle, bytes});
    else
      known->share += bytes;
  };
  for (model::BucketIndex b = 0; b < plan.bucket_bytes.size(); ++b)
    add(plan.cycles.of(b).generations, static_cast<double>(plan.bucket_bytes[b]));
  if (parts.empty()) {
    add(plan.cycles.usual.generations, 1);
    for (const auto& [bucket, own] : plan.cycles.own) add(own.generations, 1);
  }
  for (Part& part : parts) part.share /= all;
  return parts;
}

// A mean over the steps of a cycle.
double staleness_in_updates(const Cycle& cycle, std::uint32_t period_steps) {
  const std::size_t count = cycle.size();
  // Seen from far enough on, all generations before have one of an earlier cycle to count.
  const std::size_t cycles = cycle.back().apply_step / period_steps + 1;
  const auto apply_step = [&](std::size_t g) {
    return cycle[g % count].apply_step + g / count * std::uint64_t{period_steps};
  };
  std::uint64_t sum = 0;
  for (std::size_t g = 0; g < count; ++g)
    for (std::uint32_t step = cycle[g].first_step; step <= cycle[g].last_step; ++step) {
      const std::uint64_t computed = step + cycles * std::uint64_t{period_steps};
      const std::size_t own = g + cycles * count;
      for (std::size_t before = own; before-- > 0 && apply_step(before) > computed;) ++sum;
    }
  return static_cast<double>(sum) / period_steps;
}

double ratio_of(double original, double planned) { return planned > 0 ? original / planned : 1.0; }

// The share of an update's way that it pulls the walk back; an update of k summed steps pulls k times as far.
double pull_of(const model::Plan& plan, const Walk& walk, MergeScale merging) {
  const double step = walk.learning_rate * (merging == MergeScale::kSum ? plan.max_merged() : 1);
  return step * std::max(walk.gradient_norm, walk.gradient_mean) / (2 * (walk.state - walk.target));
}

}  // namespace

double staleness_in_updates(const model::Plan& plan) {
  double sum = 0;
  for (const auto& [cycle, share] : parts_of(plan))
    sum += share * staleness_in_updates(cycle, plan.cycles.period_steps());
  return sum;
}

double staleness_noise(double pull, double delay_updates) {
  const double angle = pull * delay_updates;
  if (!(angle < std::numbers::pi / 2)) return std::numeric_limits<double>::infinity();
  return (1 + std::sin(angle)) / std::cos(angle);
}

Judgement judge(const model::Plan& plan, const Walk& walk, MergeScale merging, double epsilon, Staleness judged) {
  Position original(walk);
  for (std::uint32_t step = 0; step < plan.cycles.period_steps(); ++step) original.update(1, merging);
  Judgement out;
  out.expected_original = original.mean();
  if (judged == Staleness::kOfAllPlans || plan.stale_share() > kAlmostAllBytes)
    out.noise = staleness_noise(kSteepest * pull_of(plan, walk, merging), staleness_in_updates(plan));
  for (const auto& [cycle, share] : parts_of(plan)) {
    out.expected_fresh += share * expected(cycle, walk, merging, 1);
    out.expected_plan += share * expected(cycle, walk, merging, out.noise);
  }
  out.ratio = ratio_of(out.expected_original, out.expected_plan);
  out.ratio_fresh = ratio_of(out.expected_original, out.expected_fresh);
  out.accepted = is_no_worse(out.ratio, epsilon);
  out.accepted_fresh = is_no_worse(out.ratio_fresh, epsilon);
  return out;
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

Result<Preserved> preserve(const Planner& planner, const Walk& walk, PlanRequest request, MergeScale merging,
                           double epsilon, Staleness judged) {
  if (auto ok = check_walk(walk); !ok) return tl::unexpected(ok.error());
  for (unsigned attempt = 1;; ++attempt) {
    auto plan = planner(request);
    if (!plan) return tl::unexpected(plan.error());
    const Judgement judgement = judge(*plan, walk, merging, epsilon, judged);
    if (judgement.accepted || attempt > kMostAttempts) return Preserved{std::move(*plan), judgement, request, attempt};
    const std::uint32_t staleness = plan->max_staleness();
    if (judgement.accepted_fresh && staleness > 0)
      request.max_staleness_steps = std::min(request.max_staleness_steps, staleness) - 1;
    else
      request.capacity *= kMoreCapacity;
  }
}

}  // namespace deft::preserve
