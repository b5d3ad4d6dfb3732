#include "bench/link/loopback.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

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

// Keys appear once and are never taken back; waits by polling, which only opening a link does.
class PollingStore final : public Store {
 public:
  Result<void> set(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = {value.begin(), value.end()};
    return {};
  }
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override {
    std::vector<std::vector<std::byte>> found;
    while (found.size() < keys.size()) {
      if (MonotonicClock::now() > deadline_us) return fail(ErrorKind::kTimeout, "no " + keys[found.size()]);
      const std::lock_guard lock(mutex_);
      const auto value = values_.find(keys[found.size()]);
      if (value != values_.end()) found.push_back(value->second);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::byte>> values_;
};

template <typename T>
T value_or_exit(Result<T> result) {
  if (result) return *std::move(result);
  std::cerr << result.error().message() << "\n";
  std::exit(1);
}

}  // namespace

Connect connect_deft() {
  return [store = std::make_shared<PollingStore>()](std::uint32_t node) -> AllReduceFunction {
    const Group group{node, kNodes, "bench", store, MonotonicClock::now() + 10'000'000, 10'000'000};
    const LinkSpec spec{"gloo", "lo", "127.0.0." + std::to_string(node + 1)};
    return [link = std::shared_ptr<Link>(value_or_exit(open_link(spec, group)))](float* data, std::size_t count) {
      const auto done =
          link->all_reduce(reinterpret_cast<std::byte*>(data), count, model::DType::kFloat32, model::ReduceOp::kSum);
      if (!done) std::cerr << done.error().message() << "\n";
    };
  };
}

Cost measure(const Connect& connect, std::size_t bytes, std::size_t part, int passes) {
  Cost cost{.wall_ms = 1e9, .cpu_ms_per_node = 0};
  std::barrier in_step(kNodes);
  const auto run = [&](std::uint32_t node) {
    const AllReduceFunction all_reduce = connect(node);
    std::vector<float> data(bytes / sizeof(float));
    const std::size_t step = part / sizeof(float);
    const auto pass = [&] {
      for (std::size_t i = 0; i < data.size(); i += step) all_reduce(&data[i], std::min(step, data.size() - i));
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
