// The daemon's one event loop: sockets, ring doorbells, timers, and work posted by other threads.
//
//   Reactor reactor;
//   reactor.watch(fd, EPOLLIN, [&](std::uint32_t events) { ... });
//   reactor.after(1'000'000, [&] { ... });
//   reactor.post([&] { ... });      // the only member that other threads may call, beside stop()
//   reactor.run();
//
// Callbacks run on the thread that called run(), never nested, and must not block.
//
// A callback that throws (memory or threads are used up) never ends the daemon. Each callback belongs to the owner for
// whom it was made, a session or a job, and that owner alone is told and fails:
//   reactor.run_for(job, [&] { ... });   // callbacks that are made meanwhile belong to `job`, and so does what is thrown
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::daemon {

// Who fails when a callback throws.
class CallbackOwner {
 public:
  virtual ~CallbackOwner() = default;
  // On the reactor's thread, after the callback. `error`: kExhausted for memory and threads, else kInternal.
  virtual void callback_failed(const Error& error) = 0;
};

class Reactor {
 public:
  using Owner = std::weak_ptr<CallbackOwner>;
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

  void post(Callback callback, Owner owner = current_owner());  // any thread
  void stop();                                                  // any thread

  // Runs `body` now, for `owner`. Reactor thread.
  template <typename Body>
  void run_for(const Owner& owner, const Body& body) {
    const Owner* const before = std::exchange(current_, &owner);
    try {
      body();
    } catch (...) {
      current_ = before;
      report(owner);
    }
    current_ = before;
  }
  // The owner of what runs now on this thread; none on other threads.
  [[nodiscard]] static Owner current_owner() { return current_ != nullptr ? *current_ : Owner(); }
  // How many callbacks have thrown.
  [[nodiscard]] std::uint64_t failed_callbacks() const { return failed_callbacks_; }

  void set_spin(TimeUs spin_us) { spin_us_ = spin_us; }
  void run();  // until stop(); it may run again

 private:
  template <typename Function>
  struct Owned {
    Function function;
    Owner owner;
  };
  using Poller = std::function<bool(bool about_to_sleep)>;
  struct Timer {
    TimerId id;
    Owned<Callback> callback;
  };
  bool run_posted();
  bool run_timers();
  bool run_pollers(bool about_to_sleep);
  bool run_events(int timeout_ms);
  [[nodiscard]] int timeout_ms() const;
  void wake() const;
  void report(const Owner& owner) noexcept;  // the exception that is being handled

  shm::Descriptor epoll_;
  shm::Descriptor wake_;
  std::unordered_map<int, std::shared_ptr<Owned<FdCallback>>> watched_;
  std::multimap<TimeUs, Timer> timers_;
  std::unordered_map<TimerId, TimeUs> timer_times_;
  std::map<PollerId, std::shared_ptr<Owned<Poller>>> pollers_;
  std::uint64_t next_id_ = 1;
  TimeUs spin_us_ = 0;
  bool stopping_ = false;
  std::uint64_t failed_callbacks_ = 0;
  inline static thread_local const Owner* current_ = nullptr;

  std::mutex mutex_;
  std::vector<Owned<Callback>> posted_;
};

}  // namespace deft::daemon
