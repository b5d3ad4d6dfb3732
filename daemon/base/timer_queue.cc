#include "daemon/base/timer_queue.h"

#include <algorithm>

namespace deft::daemon {

TimerQueue::Id TimerQueue::add(TimeUs delay_us, std::function<void()> callback) {
  const Id id = next_++;
  const TimeUs at = clock_.now_us() + std::max<TimeUs>(delay_us, 0);
  timers_.emplace(at, Timer{id, std::move(callback), current_owner()});
  times_[id] = at;
  return id;
}

void TimerQueue::cancel(Id timer) {
  const auto time = times_.find(timer);
  if (time == times_.end()) return;
  const auto [first, last] = timers_.equal_range(time->second);
  const auto it = std::find_if(first, last, [&](const auto& entry) { return entry.second.id == timer; });
  if (it != last) timers_.erase(it);
  times_.erase(time);
}

bool TimerQueue::run_due(const std::function<void()>& ran) {
  bool any = false;
  const TimeUs now = clock_.now_us();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Timer timer = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    times_.erase(timer.id);
    run_for(timer.owner, "a timer", timer.callback);
    ran();
    any = true;
  }
  return any;
}

std::optional<TimeUs> TimerQueue::wait_us() const {
  if (timers_.empty()) return std::nullopt;
  return std::max<TimeUs>(timers_.begin()->first - clock_.now_us(), 0);
}

std::optional<TimeUs> TimerQueue::next_us() const {
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
}

}  // namespace deft::daemon
