#include "bench/link/loopback.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "bench/link/polling_store.h"
#include "core/link/link.h"

namespace deft::link {
namespace {

constexpr std::uint32_t kNodes = 2;

double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

}  // namespace

Connect connect_deft(const std::string& backend, std::size_t under_way, bool encrypts) {
  return [=, store = std::make_shared<PollingStore>()](std::uint32_t node) -> AllReduce {
    LinkGroup group{.node = node, .nodes = kNodes, .prefix = "bench", .store = store};
    group.connect_deadline_us = MonotonicClock::now() + 10'000'000;
    group.encrypts = encrypts;
    const LinkSpec spec{backend, "lo", "127.0.0." + std::to_string(node + 1)};
    const std::shared_ptr<Link> link = value_or_exit(open_link(spec, group));
    const auto in_flight = std::make_shared<std::size_t>(0);
    const auto submitted = std::make_shared<std::uint64_t>(0);
    const auto poll_down_to = [=](std::size_t left) {
      while (*in_flight > left)
        if (value_or_exit(link->poll())) --*in_flight;
    };
    return {
        [=](float* data, std::size_t count) {
          poll_down_to(under_way - 1);
          value_or_exit(link->submit(WorkRequest::all_reduce(
              reinterpret_cast<std::byte*>(data), count, model::DType::kFloat32, model::ReduceOp::kSum, ++*submitted)));
          ++*in_flight;
        },
        [=] { poll_down_to(0); }};
  };
}

Cost measure(const Connect& connect, std::size_t bytes, std::size_t part, int passes) {
  Cost cost{.wall_ms = 1e9, .cpu_ms_per_node = 0};
  std::barrier in_step(kNodes);
  const auto run = [&](std::uint32_t node) {
    const AllReduce all_reduce = connect(node);
    std::vector<float> data(bytes / sizeof(float));
    const std::size_t step = part / sizeof(float);
    const auto pass = [&] {
      for (std::size_t i = 0; i < data.size(); i += step) all_reduce.begin(&data[i], std::min(step, data.size() - i));
      all_reduce.finish();
    };
    pass();
    in_step.arrive_and_wait();
    const double cpu_before = cpu_ms();
    for (int i = 0; i < passes; ++i) {
      in_step.arrive_and_wait();
      const TimeUs start = MonotonicClock::now();
      pass();
      if (node == 0) cost.wall_ms = std::min(cost.wall_ms, static_cast<double>(MonotonicClock::now() - start) / 1e3);
    }
    in_step.arrive_and_wait();
    if (node == 0) cost.cpu_ms_per_node = (cpu_ms() - cpu_before) / passes / kNodes;
    in_step.arrive_and_wait();
  };
  std::thread other(run, 1U);
  run(0);
  other.join();
  return cost;
}

}  // namespace deft::link
