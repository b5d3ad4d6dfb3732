#include "tools/probe_measure.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace deft::tools {
namespace {

constexpr std::size_t kSizes[] = {4, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4U << 20, 16U << 20};
constexpr std::uint32_t kFewest = 3, kMost = 2000;

// Aborts the link at the deadline unless it is destroyed before.
class Watch {
 public:
  Watch(link::Link& link, TimeUs deadline_us)
      : thread_([this, &link, deadline_us] {
          std::unique_lock lock(mutex_);
          while (!done_) {
            const TimeUs left = deadline_us - MonotonicClock::now();
            if (left <= 0) return link.abort("an operation did not end in time");
            changed_.wait_for(lock, std::chrono::microseconds(left));
          }
        }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

// One all-reduce and its time. Zeroes: their sums never overflow, and no link compresses.
Result<double> transfer(link::Link& link, std::vector<std::byte>& data, std::size_t bytes) {
  const TimeUs began = MonotonicClock::now();
  if (auto ok = link.run(
          link::WorkRequest::all_reduce(data.data(), bytes / 4, model::DType::kFloat32, model::ReduceOp::kSum));
      !ok)
    return tl::unexpected(ok.error());
  return static_cast<double>(std::max<TimeUs>(MonotonicClock::now() - began, 1));
}

// How often this size is transferred: what its share of the time allows, in node 0's view.
std::uint32_t repeats(double us, double share_us) {
  return static_cast<std::uint32_t>(std::clamp(share_us / us, double{kFewest}, double{kMost}));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Result<std::vector<model::LinkSample>> measure_link(link::Link& link, const ProbeLimits& limits) {
  const Watch watch(link, limits.deadline_us);
  const double share_us = limits.seconds * 1e6 / std::size(kSizes);
  std::vector<std::byte> data(kSizes[std::size(kSizes) - 1]);
  std::vector<model::LinkSample> samples;
  for (const std::size_t bytes : kSizes) {
    auto first = transfer(link, data, bytes);  // also warms up
    if (!first) return tl::unexpected(first.error());
    // Node 0 also ends the series, when a transfer takes more than this size's share.
    const bool enough = bytes >= limits.largest || (samples.size() >= 3 && *first > share_us);
    std::uint32_t plan[2] = {repeats(*first, share_us), enough ? 1U : 0U};
    if (auto told = link.run(link::WorkRequest::broadcast(reinterpret_cast<std::byte*>(plan), sizeof plan, 0)); !told)
      return tl::unexpected(told.error());
    std::vector<double> times;
    for (std::uint32_t i = 0; i < plan[0]; ++i) {
      const auto us = transfer(link, data, bytes);
      if (!us) return tl::unexpected(us.error());
      times.push_back(*us);
    }
    samples.push_back({bytes, median(std::move(times))});
    if (plan[1] != 0) break;
  }
  return samples;
}

Result<model::LinkSample> measure_for(link::Link& link, std::size_t bytes, const ProbeLimits& limits) {
  const Watch watch(link, limits.deadline_us);
  std::vector<std::byte> data(bytes);
  const TimeUs began = MonotonicClock::now();
  std::uint64_t count = 0;
  std::uint32_t goes_on = 1;
  while (goes_on != 0) {
    if (auto done = transfer(link, data, bytes); !done) return tl::unexpected(done.error());
    ++count;
    goes_on = static_cast<double>(MonotonicClock::now() - began) < limits.seconds * 1e6 ? 1 : 0;
    if (auto told = link.run(link::WorkRequest::broadcast(reinterpret_cast<std::byte*>(&goes_on), sizeof goes_on, 0));
        !told)
      return tl::unexpected(told.error());
  }
  return model::LinkSample{bytes, static_cast<double>(MonotonicClock::now() - began) / static_cast<double>(count)};
}

Result<std::vector<double>> measure_one_way(link::Link& link, std::size_t bytes, const ProbeLimits& limits) {
  const Watch watch(link, limits.deadline_us);
  std::vector<std::byte> data(bytes);
  std::vector<double> rates;
  for (const std::uint32_t root : {0U, 1U}) {
    std::vector<double> times;
    for (std::uint32_t i = 0; i < kFewest; ++i) {
      const TimeUs began = MonotonicClock::now();
      if (auto sent = link.run(link::WorkRequest::broadcast(data.data(), bytes, root)); !sent)
        return tl::unexpected(sent.error());
      // The sender has got rid of it before the other one has all of it; this ends when both have.
      if (auto both = transfer(link, data, 4); !both) return tl::unexpected(both.error());
      times.push_back(static_cast<double>(std::max<TimeUs>(MonotonicClock::now() - began, 1)));
    }
    // The fastest one: what the wire can do, however busy the machines are.
    rates.push_back(static_cast<double>(bytes) / *std::ranges::min_element(times));
  }
  return rates;
}

}  // namespace deft::tools
