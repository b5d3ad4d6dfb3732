// The daemon's one event loop: sockets, ring doorbells, timers, and work posted by other threads.
//
//   Reactor reactor;
//   reactor.watch(fd, EPOLLIN, [&](std::uint32_t events) { ... });
//   reactor.after(1'000'000, [&] { ... });
//   reactor.post([&] { ... });      // the only member that other threads may call, beside stop()
//   reactor.offload(uid, [] { what may block }, [&] { when it has ended });
//   reactor.run();
//
// Callbacks run on the thread that called run(), never nested, and must not block. A callback belongs to the owner for whom it was
// made; its exception fails that owner alone (daemon/base/callback_owner.h).
//
// clock() leaves out the time in which the process stood still, because it was stopped or its machine was suspended. run() notices that
// by a timer that comes far too late (daemon/base/running_clock.h). So after a suspension of the whole job nobody is taken for lost:
// all timers and deadlines go on from where they were.
//
// A test gives the reactor a ManualClock and calls run_once() instead of run(): so no test waits for a timer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/shm/segment.h"
#include "daemon/base/blocking_work.h"
#include "daemon/base/callback_owner.h"
#include "daemon/base/loop_meter.h"
#include "daemon/base/running_clock.h"
#include "daemon/base/timer_queue.h"

namespace deft::daemon {

class Reactor {
 public:
  using Callback = std::function<void()>;
  using FdCallback = std::function<void(std::uint32_t events)>;
  using Poller = std::function<bool(bool about_to_sleep)>;
  using TimerId = TimerQueue::Id;  // 0: none
  using PollerId = std::uint64_t;  // 0: none

  // Ends the process if the kernel refuses an epoll or event descriptor: nothing can run without. `clock` outlives the reactor.
  explicit Reactor(const Clock& clock = machine_clock());

  // Level-triggered, unless `events` has EPOLLET. kExhausted if the kernel cannot watch one more.
  Result<void> watch(int fd, std::uint32_t events, FdCallback callback);
  void unwatch(int fd);

  TimerId after(TimeUs delay_us, Callback callback);
  void cancel(TimerId timer) { timers_.cancel(timer); }

  // A poller is asked in every round; `about_to_sleep` tells it to arm its doorbell. True: there was or is work.
  PollerId add_poller(Poller poller);
  void remove_poller(PollerId poller) { pollers_.erase(poller); }

  void post(Callback callback, OwnerRef owner = current_owner());  // any thread
  void stop();                                                     // any thread

  // Runs `work`, which may block, on another thread, and then `done` here. `user`: whose fault it is if it takes long, or
  // BlockingWork::kNobody. What `work` throws fails the caller's owner, and `done` does not come.
  void offload(uid_t user, std::function<void()> work, Callback done = {});
  // For what may outlive the reactor, and for other threads. The work throws nothing.
  [[nodiscard]] BlockingWork::Runner runner() const { return blocking_.runner(); }

  void set_spin(TimeUs spin_us) { spin_us_ = spin_us; }

  void run();  // until stop(); it may run again
  // Runs everything that is ready now, without waiting: posted work, timers that are due, pollers, descriptors. True: something ran.
  bool run_once();

  [[nodiscard]] const LoopMeter& meter() const { return meter_; }
  [[nodiscard]] const RunningClock& clock() const { return clock_; }
  [[nodiscard]] TimeUs now_us() const { return clock_.now_us(); }

 private:
  template <typename Function>
  struct Owned {
    Function function;
    OwnerRef owner;
  };
  bool run_ready();  // all but descriptors
  bool run_pollers(bool about_to_sleep);
  bool run_events(int timeout_ms);
  void expect_timer();  // leaves out a standstill; for run() alone

  RunningClock clock_;
  Descriptor epoll_;
  Descriptor wake_;
  std::unordered_map<int, std::shared_ptr<Owned<FdCallback>>> watched_;
  TimerQueue timers_;
  LoopMeter meter_;
  std::map<PollerId, std::shared_ptr<Owned<Poller>>> pollers_;
  PollerId next_poller_ = 1;
  TimeUs spin_us_ = 0;
  bool stopping_ = false;

  struct Inbox {  // of other threads
    std::mutex mutex;
    std::vector<Owned<Callback>> posted;
  };
  Inbox inbox_;
  BlockingWork blocking_;  // ends first
};

}  // namespace deft::daemon
