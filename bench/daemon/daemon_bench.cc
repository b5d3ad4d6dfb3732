// What the daemon adds: an all-reduce of gradients through two real daemons against the same gloo called directly, in
// turn in one run, on loopback. The workers hand in an arena that is ready and wait; nothing overlaps with compute.
//
//   ratio: gloo's time over ours (0.9 or more is the aim). cpu: the daemons' milliseconds a pass and node.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/daemon/private_daemon.h"
#include "bench/link/loopback.h"
#include "core/client/deft.h"

namespace deft::bench {
namespace {

constexpr int kNodes = 2;
using Pass = std::function<void()>;
using Prepare = std::function<Pass(int node)>;  // on the node's own thread

void require(int code, const deft_error& error) {
  if (code == 0) return;
  std::fprintf(stderr, "daemon_bench: %s\n", error.message);
  std::_Exit(1);
}

// The best of `passes`, in milliseconds; both nodes begin each pass together.
double best_ms(const Prepare& prepare, int passes) {
  std::vector<double> best(kNodes, 1e18);
  std::barrier together(kNodes);
  std::vector<std::thread> nodes;
  for (int node = 0; node < kNodes; ++node)
    nodes.emplace_back([&, node] {
      const Pass pass = prepare(node);
      for (int i = -2; i < passes; ++i) {  // two to warm up
        together.arrive_and_wait();
        const auto began = std::chrono::steady_clock::now();
        pass();
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
        if (i >= 0) best[static_cast<std::size_t>(node)] = std::min(best[static_cast<std::size_t>(node)], took.count());
      }
      together.arrive_and_wait();
    });
  for (auto& node : nodes) node.join();
  return *std::max_element(best.begin(), best.end());
}

struct Worker {  // one rank's session and its group of one tensor
  Worker(const PrivateDaemon& own, const PrivateDaemon& leader, int rank, std::uint64_t count) {
    const std::vector<std::string> options{"socket=" + own.socket(),
                                           "leader=" + leader.listen(),
                                           "rank=" + std::to_string(rank),
                                           "world_size=" + std::to_string(kNodes),
                                           "local_rank=0",
                                           "local_size=1"};
    std::vector<const char*> words;
    for (const auto& option : options) words.push_back(option.c_str());
    words.push_back(nullptr);
    deft_error error{};
    require(deft_open(words.data(), &session, &error), error);
    const deft_tensor tensor{"w", DEFT_FLOAT32, 1, &count, 0};
    require(deft_declare(session, "bench", &tensor, 1, 1, DEFT_SUM, &group, &error), error);
    auto* const data = static_cast<float*>(deft_tensor_data(group, 0, 0));
    std::fill(data, data + count, 0.0F);
  }
  ~Worker() { deft_close(session); }
  void pass() {
    deft_error error{};
    require(deft_ready(group, 0, 1, step, 0, &error), error);
    require(deft_wait(group, 0, 1, step++, &error), error);
  }
  deft_session* session = nullptr;
  deft_group* group = nullptr;
  std::uint64_t step = 0;
};

void through_daemon(benchmark::State& state) {
  const std::size_t count = (static_cast<std::size_t>(state.range(0)) << 20) / sizeof(float);
  const int passes = state.range(0) >= 64 ? 5 : 20;
  char folder[] = "/tmp/deft-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return state.SkipWithError("no folder in /tmp");
  double ours = 0, bare = 0, cpu = 0;
  for (auto _ : state) {
    const int port = 20000 + static_cast<int>(getpid()) % 10000;
    const PrivateDaemon first(folder, 0, port), second(folder, 1, port);
    ours = best_ms(
        [&](int node) {
          auto worker = std::make_shared<Worker>(node == 0 ? first : second, first, node, count);
          return [worker] { worker->pass(); };
        },
        passes);
    cpu = (first.cpu_ms() + second.cpu_ms()) / kNodes / (passes + 2);
    const auto connect = link::connect_bare_gloo();
    bare = best_ms(
        [&](int node) {
          auto data = std::make_shared<std::vector<float>>(count);
          return [data, reduce = connect(static_cast<std::uint32_t>(node))]() mutable {
            reduce.begin(data->data(), data->size());
            reduce.finish();
          };
        },
        passes);
    state.SetIterationTime(ours / 1e3);
  }
  std::filesystem::remove_all(folder);
  state.counters["gloo_ms"] = bare;
  state.counters["ratio"] = bare / ours;
  state.counters["cpu"] = cpu;
}
BENCHMARK(through_daemon)
    ->ArgName("MB")
    ->RangeMultiplier(4)
    ->Range(1, 256)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1);

}  // namespace
}  // namespace deft::bench

BENCHMARK_MAIN();
