// The timers of the daemon's event loop: callbacks, each with the time at which it runs.
//
//   TimerQueue timers(clock);
//   const auto id = timers.add(1'000'000, [] { ... });   // in a second
//   timers.cancel(id);                                   // no effect if it has run
//   timers.run_due([] {});  timers.wait_us();  timers.next_us();
//
// A timer belongs to the owner for whom add() was called (daemon/base/callback_owner.h). Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "core/base/clock.h"
#include "daemon/base/callback_owner.h"

namespace deft::daemon {

class TimerQueue {
 public:
  using Id = std::uint64_t;  // 0: none

  explicit TimerQueue(const Clock& clock) : clock_(clock) {}  // `clock` outlives the queue

  Id add(TimeUs delay_us, std::function<void()> callback);  // a negative delay: at once
  void cancel(Id timer);

  // Runs the callbacks that are due by the time of this call, in the order of their times; equal times in the order of add(). True: one
  // ran. `ran` is called after each.
  bool run_due(const std::function<void()>& ran);
  // The time until the next timer, 0 if it is due. Nothing: there is no timer.
  [[nodiscard]] std::optional<TimeUs> wait_us() const;
  [[nodiscard]] std::optional<TimeUs> next_us() const;  // when the next timer is due, by the clock

 private:
  struct Timer {
    Id id;
    std::function<void()> callback;
    OwnerRef owner;
  };

  const Clock& clock_;
  std::multimap<TimeUs, Timer> timers_;
  std::unordered_map<Id, TimeUs> times_;
  Id next_ = 1;
};

}  // namespace deft::daemon
