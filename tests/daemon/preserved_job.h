// A job whose workers tell the Preserver of their gradients and of the loss.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/leader/plan_preserver.h"

namespace deft::daemon::preserved {

inline constexpr TimeUs kPatienceUs = 60'000'000;

inline model::Plan plan_of(std::vector<model::PlanGeneration> generations) {
  model::Plan plan;
  plan.cycles.usual.period_steps = generations.back().last_step + 1;
  plan.cycles.usual.generations = std::move(generations);
  plan.bucket_bytes = {64};
  return plan;
}

// Merges the fewer steps the more capacity it gets: eight, four, two, one.
struct Planner {
  Result<model::Plan> operator()(const plan::PlanLimits& limits) {
    asked.push_back(limits);
    if (limits.max_staleness_steps == 0 || limits.capacity > 1.5) return plan_of({{0, 0, 1}});
    if (limits.capacity > 1.3) return plan_of({{0, 1, 2}});
    return limits.capacity > 1.1 ? plan_of({{0, 3, 4}}) : plan_of({{0, 7, 8}});
  }
  std::vector<plan::PlanLimits> asked;
};

// A job of `ranks` workers: |G|^2 = `gradient`, tr(Sigma) / B = `noise`.
inline wire::GradientStatistics statistics(std::uint64_t step, double loss, double gradient, double noise,
                                           std::uint32_t ranks = 2, std::uint32_t world = 4) {
  wire::GradientStatistics out;
  out.step = step;
  out.ranks = ranks;
  out.local_norms = ranks * (gradient + noise * world);
  out.average_norms = ranks * (gradient + noise);
  out.loss = ranks * loss;
  out.learning_rate = 0.01;
  return out;
}

// A training whose first fall of the loss is over.
struct Job {
  explicit Job(bool begun = true, TimeUs patience_us = kPatienceUs) : preserver(4, 2, 0.01, patience_us) {
    if (begun) begin();
  }
  void begin() {
    for (loss = 3.5; loss > 1.9; loss -= 0.3) tell_one(1);
    loss = 2;
    while (preserver.status()["judgement"]["note"].get<std::string>().find("only begun") != std::string::npos)
      tell_one(1);
  }
  PlanPreserver preserver;
  Planner planner;
  std::uint64_t step = 0;
  double loss = 2;
  double learning_rate = 0.01;  // 0, and gradients of 0: the loss alone is told

  void tell_one(double gradient, double noise = 0, std::uint64_t steps = 1) {
    step += steps;
    auto told = statistics(step, loss, gradient, noise);
    told.learning_rate = learning_rate;
    for (const std::size_t node : {0, 1}) preserver.take(node, told);
  }
  // The loss falls by `fall` a step.
  void tell(double fall, double gradient, int times = 8) {
    for (int i = 0; i < times; ++i, loss -= fall) tell_one(gradient);
  }
  plan::GuardedPlan choose() {
    planner.asked.clear();
    return preserver.choose([this](const plan::PlanLimits& limits) { return planner(limits); }, {}).value();
  }
};

}  // namespace deft::daemon::preserved
