// How long planning takes. The promises: 20 buckets on 2 links under 5 ms, 200 on 4 under 50 ms, 2,000 on 4 under 1 s.
// The argument behind the sizes is the coverage in percent: planning is hardest if the links are short of time.
#include <benchmark/benchmark.h>

#include <random>

#include "core/papers/knapsack_solver.h"
#include "core/plan/planner.h"
#include "core/preserve/preserver.h"
#include "tests/plan/update_rate_limit.h"

namespace deft::plan {
namespace {

model::Profile profile_of(std::size_t buckets, std::size_t links, double coverage) {
  std::mt19937_64 random(buckets * 8 + links);
  std::lognormal_distribution<> heavy(0, 1.5);
  constexpr double kComputeUs = 200'000;
  std::vector<double> sizes;
  std::vector<double> times;
  double size = 0;
  double time = 0;
  for (std::size_t i = 0; i < buckets; ++i) {
    size += sizes.emplace_back(heavy(random));
    time += times.emplace_back(heavy(random));
  }
  model::Profile profile;
  double speed = 0;
  for (std::size_t l = 0; l < links; ++l) {
    const double slower = 1 + 0.65 * static_cast<double>(l);
    speed += 1 / slower;
    profile.links.push_back({"link" + std::to_string(l), 20, slower, {}});
  }
  for (std::size_t i = 0; i < buckets; ++i) {
    const double us = sizes[i] / size * kComputeUs * coverage * speed;
    profile.buckets.push_back({"b" + std::to_string(i), static_cast<std::uint64_t>(us * 1000) + 4,
                               times[i] / time * kComputeUs / 3, times[i] / time * kComputeUs * 2 / 3, us});
  }
  return profile;
}

void plan_within(benchmark::State& state, const PlanLimits& limits) {
  const auto profile = profile_of(static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)),
                                  static_cast<double>(state.range(2)) / 100);
  model::Plan last;
  for (auto _ : state) {
    auto plan = find_plan(profile, limits);
    if (!plan) return state.SkipWithError(plan.error().message().c_str());
    last = std::move(*plan);
  }
  state.counters["rate_of_limit"] = last.updates_per_step() / update_rate_limit(profile);
  state.counters["step_of_compute"] = last.step_us / last.compute_us;
  state.counters["staleness"] = last.max_staleness();
}
void plan(benchmark::State& state) { plan_within(state, {}); }
void plan_in_training(benchmark::State& state) { plan_within(state, training_limits()); }
BENCHMARK(plan)
    ->ArgNames({"buckets", "links", "coverage"})
    ->ArgsProduct({{20}, {2}, {50, 99, 130, 198, 400, 800}})
    ->ArgsProduct({{200}, {4}, {50, 99, 130, 198, 400, 800}})
    ->ArgsProduct({{2000}, {4}, {50, 99, 130, 198, 400, 800}})
    ->Unit(benchmark::kMillisecond);

BENCHMARK(plan_in_training)
    ->ArgNames({"buckets", "links", "coverage"})
    ->ArgsProduct({{20}, {2}, {50, 130, 198, 400}})
    ->ArgsProduct({{200}, {4}, {50, 130, 198, 400}})
    ->ArgsProduct({{2000}, {4}, {50, 130, 198, 400}})
    ->Unit(benchmark::kMillisecond);

// The promise: at most 150 ms. With seven codecs to choose from for each bucket, as bf16, int8 and so on down the ladder.
void plan_with_codecs(benchmark::State& state) {
  auto profile = profile_of(static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)),
                            static_cast<double>(state.range(2)) / 100);
  double share = 1, error = 1e-6;
  for (int i = 1; i <= 7; ++i) {
    share *= 0.6, error *= 6;
    profile.codecs.push_back({.name = "codec" + std::to_string(i),
                              .wire_share = share,
                              .encode_us_per_byte = 1e-4,
                              .decode_us_per_byte = 1e-4,
                              .error = error});
  }
  model::Plan last;
  for (auto _ : state) {
    auto plan = find_plan(profile, training_limits());
    if (!plan) return state.SkipWithError(plan.error().message().c_str());
    last = std::move(*plan);
  }
  state.counters["step_of_compute"] = last.step_us / last.compute_us;
  state.counters["error_of_bound"] = last.codec_error_bound > 0 ? last.codec_error / last.codec_error_bound : 1;
  state.counters["staleness"] = last.max_staleness();
}
BENCHMARK(plan_with_codecs)
    ->ArgNames({"buckets", "links", "coverage"})
    ->ArgsProduct({{20, 200, 2000}, {4}, {130, 198, 400}})
    ->Unit(benchmark::kMillisecond);

// Synchronous plans, and caps that allow no plan without waiting: the search goes through all update ratios.
void plan_with_caps(benchmark::State& state) {
  const auto profile = profile_of(static_cast<std::size_t>(state.range(0)), 4, 4);
  PlanLimits limits;
  limits.max_staleness_steps = static_cast<std::uint32_t>(state.range(1));
  for (auto _ : state) benchmark::DoNotOptimize(find_plan(profile, limits));
}
BENCHMARK(plan_with_caps)
    ->ArgNames({"buckets", "staleness"})
    ->ArgsProduct({{20, 200, 2000}, {0, 1}})
    ->Unit(benchmark::kMillisecond);

void exact(benchmark::State& state) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<> any(1, 100);
  std::vector<papers::KnapsackItem> items;
  double total = 0;
  for (int i = 0; i < state.range(0); ++i) {
    const double cost = any(random);
    items.push_back({cost, any(random), {cost, cost * 1.65}});
    total += cost;
  }
  const std::vector<double> deadline{total / 3, total / 3};
  double gap = 0;
  for (auto _ : state) gap = papers::exact_knapsack(items, deadline, 100'000, 1e-4).gap();
  state.counters["gap"] = gap;
}
BENCHMARK(exact)->Arg(10)->Arg(20)->Arg(50)->Arg(200)->Unit(benchmark::kMillisecond);

void judge_plan(benchmark::State& state) {
  const auto plan = find_plan(profile_of(20, 2, 2), {});
  const preserve::Walk walk{
      .state = 0.02, .target = 0, .learning_rate = 0.01, .gradient_mean = 0.4, .gradient_deviation = 20, .batch = 64};
  for (auto _ : state) benchmark::DoNotOptimize(preserve::judge(*plan, walk));
}
BENCHMARK(judge_plan)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deft::plan

BENCHMARK_MAIN();
