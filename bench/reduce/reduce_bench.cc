// How near the local reduction comes to the memory's speed.
//
// `of_memory` is its traffic (every input read once, the result written once) over the best that this run saw of plain
// passes over memory, with buffers that no cache holds: memcpy, memcmp, a sum in place (a += b, which moves what the sum of
// two inputs has to move) and reading alone. Aim: 0.7 or more; more than 1 is noise.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/processor_time.h"
#include "core/reduce/reduce.h"

namespace deft::reduce {
namespace {

constexpr std::size_t kBytes = 64 << 20;

using bench::seconds;

// a += b and the sum of a, as plainly as a compiler likes it (bench/reduce/CMakeLists.txt turns the vectoriser on).
void add(std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}
std::uint32_t read(const std::vector<std::uint32_t>& a) {
  std::uint32_t bits = 0;
  for (const std::uint32_t word : a) bits ^= word;
  return bits;
}

// Bytes a second, read and written together: the best so far, tried again at every call.
double memory_speed() {
  static std::vector<float> a(kBytes / sizeof(float), 1.0F);
  static std::vector<float> b(kBytes / sizeof(float), 1.0F);
  static std::vector<std::uint32_t> words(kBytes / sizeof(std::uint32_t), 1);
  static double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double copied = seconds([] { benchmark::DoNotOptimize(std::memcpy(b.data(), a.data(), kBytes)); });
    const double compared = seconds([] { benchmark::DoNotOptimize(std::memcmp(b.data(), a.data(), kBytes)); });
    const double added = seconds([] {
      add(a, b);
      benchmark::ClobberMemory();
    });
    const double was_read = seconds([] { benchmark::DoNotOptimize(read(words)); });
    best = std::max({best, 2 * kBytes / copied, 2 * kBytes / compared, 3 * kBytes / added, kBytes / was_read});
  }
  return best;
}

void local_reduce(benchmark::State& state) {
  const auto dtype = static_cast<model::DType>(state.range(0));
  const auto count = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<std::byte>> buffers(count, std::vector<std::byte>(kBytes));
  std::vector<const std::byte*> inputs;
  for (const auto& buffer : buffers) inputs.push_back(buffer.data());
  double best = 1e9;
  for (auto _ : state) {
    best =
        std::min(best, seconds([&] {
                   reduce(buffers[0].data(), inputs, kBytes / model::dtype_bytes(dtype), dtype, model::ReduceOp::kSum);
                 }));
  }
  const double traffic = static_cast<double>(count + 1) * kBytes;
  state.SetLabel(std::string(model::to_string(dtype)));
  state.counters["GB/s"] = traffic / best / 1e9;
  state.counters["of_memory"] = traffic / best / memory_speed();
}
BENCHMARK(local_reduce)
    ->ArgNames({"dtype", "inputs"})
    ->ArgsProduct({{1, 2, 3, 4, 5, 8}, {2, 4, 8}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(5);

}  // namespace
}  // namespace deft::reduce

BENCHMARK_MAIN();
