#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <thread>
#include <vector>

#include "bench/link/loopback.h"
#include "bench/link/polling_store.h"
#include "core/link/link.h"
#include "core/link/ps/parameter_server.h"

namespace deft::link {
namespace {

constexpr std::uint32_t kNodes = 2;
constexpr std::size_t kSmall = 16 << 10;  // floats

// Until the small one has ended; both have when it returns.
double round_ms(Link& link, std::vector<float>& large, std::vector<float>& small, std::uint32_t priority) {
  constexpr std::uint64_t kOfLarge = 1, kOfSmall = 2;
  const auto submit = [&](std::vector<float>& data, std::uint64_t id, std::uint32_t how) {
    value_or_exit(link.submit(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(),
                                                      model::DType::kFloat32, model::ReduceOp::kSum, id, how)));
  };
  submit(large, kOfLarge, 1);
  const TimeUs began = MonotonicClock::now();
  submit(small, kOfSmall, priority);
  TimeUs ended = 0;
  while (!link.idle()) {
    const auto done = value_or_exit(link.poll());
    if (done && done->id == kOfSmall) ended = MonotonicClock::now();
  }
  return static_cast<double>(ended - began) / 1e3;
}

}  // namespace

double small_behind_large_ms(std::size_t bytes, std::uint32_t priority, int rounds) {
  const auto server = value_or_exit(
      ps_backend::ParameterServer::open({.listen = "127.0.0.1:*", .key_file = {}, .log = {}, .on_turn = {}}));
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::thread serving([&] { server->run(stop_fd); });
  const auto store = std::make_shared<PollingStore>();
  std::vector<double> times;
  const auto run = [&](std::uint32_t node) {
    LinkGroup group{.node = node, .nodes = kNodes, .prefix = "bench", .store = store};
    group.connect_deadline_us = MonotonicClock::now() + 10'000'000;
    const auto link = value_or_exit(open_link({"ps", server->address(), ""}, group));
    std::vector<float> large(bytes / sizeof(float));
    std::vector<float> small(kSmall);
    for (int i = 0; i < rounds; ++i) {
      const double ms = round_ms(*link, large, small, priority);
      if (node == 0) times.push_back(ms);
    }
  };
  std::thread other(run, 1U);
  run(0);
  other.join();
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_fd, &one, sizeof one);
  serving.join();
  close(stop_fd);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace deft::link
