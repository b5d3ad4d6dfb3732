// The daemon's one event loop: sockets, ring doorbells, timers, and work posted by other threads.
//
//   Reactor reactor;
//   reactor.watch(fd, EPOLLIN, [&](std::uint32_t events) { ... });
//   reactor.after(1'000'000, [&] { ... });
//   reactor.post([&] { ... });      // the only member that other threads may call, with stop()
//   reactor.run();
//
// Callbacks run on the thread that called run(), never nested, and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::daemon {

class Reactor {
 public:
  using Callback = std::function<void()>;
  using FdCallback = std::function<void(std::uint32_t events)>;
  using TimerId = std::uint64_t;  // 0: none
  using PollerId = std::uint64_t;

  // Ends the process where the kernel refuses an epoll or event descriptor: nothing can run without.
  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  Result<void> watch(int fd, std::uint32_t events, FdCallback callback);  // level-triggered
  void unwatch(int fd);

  TimerId after(TimeUs delay_us, Callback callback);
  void cancel(TimerId timer);

  // A poller is asked in every round; `about_to_sleep` tells it to arm its doorbell. True: there was or is work.
  PollerId add_poller(std::function<bool(bool about_to_sleep)> poller);
  void remove_poller(PollerId poller);

  void post(Callback callback);  // any thread
  void stop();                   // any thread

  void set_spin(TimeUs spin_us) { spin_us_ = spin_us; }
  void run();  // until stop(); it may run again

 private:
  struct Timer {
    TimerId id;
    Callback callback;
  };
  bool run_posted();
  bool run_timers();
  bool run_pollers(bool about_to_sleep);
  bool run_events(int timeout_ms);
  [[nodiscard]] int timeout_ms() const;
  void wake() const;

  shm::Descriptor epoll_;
  shm::Descriptor wake_;
  std::unordered_map<int, std::shared_ptr<FdCallback>> watched_;
  std::multimap<TimeUs, Timer> timers_;
  std::unordered_map<TimerId, TimeUs> timer_times_;
  std::map<PollerId, std::shared_ptr<std::function<bool(bool)>>> pollers_;
  std::uint64_t next_id_ = 1;
  TimeUs spin_us_ = 0;
  bool stopping_ = false;

  std::mutex mutex_;
  std::vector<Callback> posted_;
};

}  // namespace deft::daemon
