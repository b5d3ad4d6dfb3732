// Events a second of the simulator under each policy (aim: a million or more), and what a scheduler's decision costs.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "core/base/policy_traits.h"
#include "core/papers/policies.h"
#include "core/sim/simulation.h"

namespace deft::sim {
namespace {

model::Profile random_profile(std::uint32_t buckets, std::uint32_t links) {
  std::mt19937_64 random(buckets * 31 + links);
  std::lognormal_distribution<double> size(12, 1.5);
  std::exponential_distribution<double> time_us(0.01);
  model::Profile profile;
  profile.model = "random";
  double bytes = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) {
    profile.buckets.push_back({"b" + std::to_string(i),
                               static_cast<std::uint64_t>(size(random)) + 64,
                               time_us(random),
                               2 * time_us(random),
                               {}});
    bytes += static_cast<double>(profile.buckets.back().bytes);
  }
  const double rate = bytes / (1.5 * profile.compute_us()) / links;
  for (std::uint32_t i = 0; i < links; ++i) profile.links.push_back({"l" + std::to_string(i), 5, {}, rate});
  return profile;
}

void run(benchmark::State& state, const model::Profile& profile, std::string_view policy) {
  std::uint64_t events = 0;
  for (auto _ : state) {
    const auto scheduler = papers::make_scheduler(setup_for(profile, policy));
    const auto outcome = scheduler ? simulate(**scheduler, profile, {.steps = 50, .warmup_steps = 10})
                                   : tl::unexpected(scheduler.error());
    if (!outcome) {
      std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
      std::abort();
    }
    events += outcome->events;
  }
  state.counters["events"] = benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
}

void register_all() {
  for (const PolicyTraits& traits : kPolicyTraits)
    for (const auto& [buckets, links] : {std::pair{20u, 1u}, {20u, 2u}, {200u, 4u}, {2000u, 4u}}) {
      const std::string name =
          "Simulate/" + std::string(traits.name) + "/" + std::to_string(buckets) + "/" + std::to_string(links);
      benchmark::RegisterBenchmark(name.c_str(), [policy = traits.name,
                                                  profile = random_profile(buckets, links)](benchmark::State& state) {
        run(state, profile, policy);
      })->Unit(benchmark::kMillisecond);
    }
}

}  // namespace
}  // namespace deft::sim

int main(int argc, char** argv) {
  deft::sim::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
