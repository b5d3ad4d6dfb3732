// The gloo link against gloo's own all-reduce, in turn in one run: two nodes on loopback, as threads of this process.
//
//   all_reduce: one operation of 1 to 256 MB. parts: 17.5 MB, the gradients of a small model, in parts of different sizes.
//   speedup: gloo's time over ours. cpu: milliseconds a node and pass, of all its threads.
#include <benchmark/benchmark.h>

#include "bench/link/loopback.h"

namespace deft::link {
namespace {

void compare(benchmark::State& state, std::size_t bytes, std::size_t part) {
  const int passes = bytes > (64 << 20) ? 3 : 8;
  Cost ours;
  Cost bare;
  for (auto _ : state) {
    ours = measure(connect_deft(), bytes, part, passes);
    bare = measure(connect_bare_gloo(), bytes, part, passes);
    state.SetIterationTime(ours.wall_ms / 1e3);
  }
  state.counters["bare_ms"] = bare.wall_ms;
  state.counters["speedup"] = bare.wall_ms / ours.wall_ms;
  state.counters["cpu"] = ours.cpu_ms_per_node;
  state.counters["bare_cpu"] = bare.cpu_ms_per_node;
}

void all_reduce(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  compare(state, bytes, bytes);
}
BENCHMARK(all_reduce)
    ->ArgName("MB")
    ->RangeMultiplier(4)
    ->Range(1, 256)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1);

void parts(benchmark::State& state) { compare(state, 17'500'000, static_cast<std::size_t>(state.range(0)) * 1000); }
BENCHMARK(parts)
    ->ArgName("KB")
    ->Arg(20)
    ->Arg(100)
    ->Arg(200)
    ->Arg(500)
    ->Arg(1000)
    ->Arg(2000)
    ->Arg(4000)
    ->Arg(17500)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1);

}  // namespace
}  // namespace deft::link

BENCHMARK_MAIN();
