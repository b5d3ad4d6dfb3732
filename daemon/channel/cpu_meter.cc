#include "daemon/channel/cpu_meter.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace deft::daemon {
namespace {

constexpr TimeUs kCpuPeriodUs = 100'000;

}  // namespace

std::vector<ThreadTime> CpuMeter::used() const {
  std::vector<link::ThreadClock> clocks = own_;
  if (link_ != nullptr) std::ranges::copy(link_->thread_clocks(), std::back_inserter(clocks));
  std::vector<ThreadTime> times;
  for (const link::ThreadClock& clock : clocks) {
    timespec used{};
    if (clock_gettime(clock.clock, &used) == 0)
      times.push_back({clock.thread, clock.number, TimeUs{used.tv_sec} * 1'000'000 + used.tv_nsec / 1000});
  }
  return times;
}

CpuTimes CpuMeter::measure(TimeUs now_us) {
  if (has_begun_ && now_us - last_us_ < kCpuPeriodUs) return {};
  CpuTimes times{.since_us = std::exchange(last_us_, now_us), .until_us = now_us};
  auto now = used();
  for (const ThreadTime& thread : now) {
    const auto before = std::ranges::find_if(
        last_, [&](const ThreadTime& other) { return other.thread == thread.thread && other.number == thread.number; });
    if (before != last_.end() && before->cpu_us <= thread.cpu_us)
      times.threads.push_back({thread.thread, thread.number, thread.cpu_us - before->cpu_us});
  }
  last_ = std::move(now);
  has_begun_ = true;
  return times;
}

}  // namespace deft::daemon
