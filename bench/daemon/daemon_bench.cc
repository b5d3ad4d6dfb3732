// What the daemon adds: an all-reduce of gradients through two real daemons against the same gloo called directly, on
// loopback. The workers hand in an arena that is ready and wait; nothing overlaps with compute. A pass of ours and one of
// gloo's alternate, so that other load on the machine meets both.
//
//   time: the best pass of ours. median_ms, gloo_ms: the medians. ratio: the median over the pairs of passes of gloo's time
//   over ours (0.9 or more is the aim). cpu: the daemons' milliseconds a pass and node.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
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
  if (code != 0) throw std::runtime_error(error.message);
}

// The folder of sockets and logs. It ends with this object.
struct Folder {
  Folder() {
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no folder in /tmp");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path = "/tmp/deft-bench-XXXXXX";
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The milliseconds of each pass on the node that took longer.
struct Times {
  std::vector<double> ours, gloo;
};

double timed_ms(const Pass& pass) {
  const auto began = std::chrono::steady_clock::now();
  pass();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

// Both nodes begin each pass together. Throws what went wrong first.
Times in_turn(const Prepare& ours, const Prepare& gloo, int passes) {
  constexpr int kWarmUp = 2;
  const auto count = static_cast<std::size_t>(passes);
  Times times{std::vector<double>(count), std::vector<double>(count)};
  std::mutex mutex;
  std::barrier together(kNodes);
  const auto run = [&](int node) {
    const Pass pass_of_ours = ours(node);
    const Pass pass_of_gloo = gloo(node);
    const auto timed = [&](const Pass& pass, std::vector<double>& row, int i) {
      together.arrive_and_wait();
      const double took = timed_ms(pass);
      if (i < 0) return;
      const std::lock_guard lock(mutex);
      row[static_cast<std::size_t>(i)] = std::max(row[static_cast<std::size_t>(i)], took);
    };
    for (int i = -kWarmUp; i < passes; ++i) {
      timed(pass_of_ours, times.ours, i);
      timed(pass_of_gloo, times.gloo, i);
    }
    together.arrive_and_wait();
  };
  std::exception_ptr first_failure;
  const auto run_and_keep_failure = [&](int node) {
    try {
      run(node);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_failure) first_failure = std::current_exception();
      together.arrive_and_drop();  // what the other node waits for fails now, too
    }
  };
  std::vector<std::thread> nodes;
  for (int node = 0; node < kNodes; ++node) nodes.emplace_back(run_and_keep_failure, node);
  for (auto& node : nodes) node.join();
  if (first_failure) std::rethrow_exception(first_failure);
  return times;
}

struct Closing {
  void operator()(deft_session* session) const { deft_close(session); }
};

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
    deft_session* opened = nullptr;
    require(deft_open(words.data(), &opened, &error), error);
    session.reset(opened);
    const deft_tensor tensor{"w", DEFT_FLOAT32, 1, &count, 0};
    require(deft_declare(session.get(), "bench", &tensor, 1, 1, DEFT_SUM, &group, &error), error);
    auto* const data = static_cast<float*>(deft_tensor_data(group, 0, 0));
    std::fill(data, data + count, 0.0F);
  }
  void pass() {
    deft_error error{};
    require(deft_ready(group, 0, 1, step, 0, &error), error);
    require(deft_wait(group, 0, 1, step++, &error), error);
  }
  std::unique_ptr<deft_session, Closing> session;
  deft_group* group = nullptr;
  std::uint64_t step = 0;
};

void measure(benchmark::State& state) {
  const std::size_t count = (static_cast<std::size_t>(state.range(0)) << 20) / sizeof(float);
  const int passes = state.range(0) >= 64 ? 5 : 20;
  const Folder folder;
  Times times;
  double cpu = 0;
  for (auto _ : state) {
    const int port = 20000 + static_cast<int>(getpid()) % 10000;
    const PrivateDaemon first(folder.path, 0, port), second(folder.path, 1, port);
    const auto connect = link::connect_bare_gloo();
    times = in_turn(
        [&](int node) {
          auto worker = std::make_shared<Worker>(node == 0 ? first : second, first, node, count);
          return [worker] { worker->pass(); };
        },
        [&](int node) {
          auto data = std::make_shared<std::vector<float>>(count);
          return [data, reduce = connect(static_cast<std::uint32_t>(node))]() mutable {
            reduce.begin(data->data(), data->size());
            reduce.finish();
          };
        },
        passes);
    cpu = (first.cpu_ms() + second.cpu_ms()) / kNodes / (passes + 2);
    state.SetIterationTime(*std::min_element(times.ours.begin(), times.ours.end()) / 1e3);
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.ours.size(); ++i) ratios.push_back(times.gloo[i] / times.ours[i]);
  state.counters["median_ms"] = median(times.ours);
  state.counters["gloo_ms"] = median(times.gloo);
  state.counters["ratio"] = median(ratios);
  state.counters["cpu"] = cpu;
}

void through_daemon(benchmark::State& state) {
  try {
    measure(state);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
  }
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
