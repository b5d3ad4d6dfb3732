// What the recorder costs an event: in the ring that is always on, and with a full trace that is compressed into a file of /tmp.
//
//   build/bench/trace_bench
//   ring:        a step's events at once, after a walk over memory that empties the caches, as compute between them does. Time of the
//                thread that records.
//   full_trace:  the same with a TraceStream. CPU time of all threads, without the walk.
//
// `ns_an_event` is the figure. events_a_step: what a step of some hundred buckets over two links records; bench/lab counts them.
#include <benchmark/benchmark.h>

#include <ctime>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/processor_time.h"
#include "core/trace/recorder.h"
#include "core/trace/trace_stream.h"

namespace deft::trace {
namespace {

constexpr std::size_t kEventsAStep = 600;
constexpr int kStepsAtOnce = 100;                        // their events fit into the ring
constexpr auto kPause = std::chrono::milliseconds(300);  // in which the stream takes them
constexpr std::size_t kCacheBytes = std::size_t{64} << 20;

double process_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

// The events of a step, as a node with two links records them.
void record_step(Recorder& recorder, TimeUs began_us) {
  for (std::uint64_t event = 0; event < kEventsAStep; ++event) {
    const TimeUs now_us = began_us + static_cast<TimeUs>(event * 100);
    TransferTrace transfer{.number = event, .bytes = 1 << 20, .wire_bytes = 1 << 20};
    transfer.stage = static_cast<std::uint16_t>(event % 4 == 3 ? TransferStage::kReport : TransferStage::kLink);
    transfer.link = static_cast<std::uint16_t>(event % 2);
    recorder.add({now_us, now_us + 2000, transfer});
  }
}

void report(benchmark::State& state, double seconds, double steps) {
  state.counters["ns_an_event"] = 1e9 * seconds / (steps * kEventsAStep);
  state.counters["events_a_step"] = kEventsAStep;
}

void ring(benchmark::State& state) {
  Recorder recorder;
  std::vector<std::uint64_t> others(kCacheBytes / sizeof(std::uint64_t), 1);
  double spent = 0, steps = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(std::accumulate(others.begin(), others.end(), std::uint64_t{0}));
    const double took = bench::seconds([&] { record_step(recorder, static_cast<TimeUs>(steps) * 250'000); });
    state.SetIterationTime(took);
    spent += took;
    ++steps;
  }
  report(state, spent, steps);
}
BENCHMARK(ring)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(200);

void full_trace(benchmark::State& state) {
  char path[] = "/tmp/deft-trace-bench-XXXXXX";
  if (mkdtemp(path) == nullptr) return state.SkipWithError("no folder in /tmp");
  const auto folder = TraceFolder::open(path);
  if (!folder) return state.SkipWithError("no folder in /tmp");
  auto writer = TraceWriter::create(*folder, "node0.trace", {.job = "bench", .host = "here"});
  if (!writer) return state.SkipWithError("no trace in /tmp");
  const auto recorder = std::make_shared<Recorder>();
  const double before = process_seconds();
  double steps = 0;
  {
    TraceStream stream(recorder, *std::move(writer), recorder->now(),
                       [](const Error& error) { std::fprintf(stderr, "trace_bench: %s\n", error.message().c_str()); });
    for (auto _ : state) {
      for (int step = 0; step < kStepsAtOnce; ++step) record_step(*recorder, static_cast<TimeUs>(steps++) * 250'000);
      std::this_thread::sleep_for(kPause);
    }
    stream.end();
  }
  report(state, process_seconds() - before, steps);
  const auto trace = read_trace(std::string(path) + "/node0.trace");
  if (!trace || trace->lost > 0) state.SkipWithError("the trace is not whole");
  std::filesystem::remove_all(path);
}
BENCHMARK(full_trace)->Unit(benchmark::kMicrosecond)->Iterations(6);

}  // namespace
}  // namespace deft::trace

BENCHMARK_MAIN();
