#include "daemon/base/reactor.h"

#include <glog/logging.h>
#include <glog/raw_logging.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <system_error>

namespace deft::daemon {

Reactor::Reactor() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  PCHECK(epoll_.valid() && wake_.valid()) << "the kernel gives no descriptors for the event loop";
  const auto ok = watch(wake_.get(), EPOLLIN, [this](std::uint32_t) {
    std::uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) > 0) {
    }
  });
  CHECK(ok) << ok.error().message();
}

Reactor::~Reactor() = default;

Result<void> Reactor::watch(int fd, std::uint32_t events, FdCallback callback) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  const bool known = watched_.count(fd) != 0;
  if (epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0)
    return fail(ErrorKind::kExhausted, std::string("cannot watch a descriptor: ") + std::strerror(errno));
  watched_[fd] = std::make_shared<Owned<FdCallback>>(Owned<FdCallback>{std::move(callback), current_owner()});
  return {};
}

void Reactor::unwatch(int fd) {
  if (watched_.erase(fd) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Reactor::TimerId Reactor::after(TimeUs delay_us, Callback callback) {
  const TimerId id = next_id_++;
  const TimeUs at = MonotonicClock::now() + std::max<TimeUs>(delay_us, 0);
  timers_.emplace(at, Timer{id, {std::move(callback), current_owner()}});
  timer_times_[id] = at;
  return id;
}

void Reactor::cancel(TimerId timer) {
  const auto time = timer_times_.find(timer);
  if (time == timer_times_.end()) return;
  const auto [first, last] = timers_.equal_range(time->second);
  for (auto it = first; it != last; ++it) {
    if (it->second.id != timer) continue;
    timers_.erase(it);
    break;
  }
  timer_times_.erase(time);
}

Reactor::PollerId Reactor::add_poller(std::function<bool(bool)> poller) {
  const PollerId id = next_id_++;
  pollers_[id] = std::make_shared<Owned<Poller>>(Owned<Poller>{std::move(poller), current_owner()});
  return id;
}

void Reactor::remove_poller(PollerId poller) { pollers_.erase(poller); }

void Reactor::post(Callback callback, Owner owner) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back({std::move(callback), std::move(owner)});
  }
  if (first) wake();
}

void Reactor::stop() {
  post([this] { stopping_ = true; });
}

void Reactor::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

bool Reactor::run_posted() {
  std::vector<Owned<Callback>> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (auto& callback : batch) run_for(callback.owner, callback.function);
  return !batch.empty();
}

bool Reactor::run_timers() {
  bool any = false;
  const TimeUs now = MonotonicClock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Timer timer = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    timer_times_.erase(timer.id);
    run_for(timer.callback.owner, timer.callback.function);
    any = true;
  }
  return any;
}

bool Reactor::run_pollers(bool about_to_sleep) {
  bool any = false;
  // A poller may add or remove pollers, itself included.
  for (auto it = pollers_.begin(); it != pollers_.end();) {
    const PollerId id = it->first;
    const auto poller = it->second;
    run_for(poller->owner, [&] { any |= poller->function(about_to_sleep); });
    it = pollers_.upper_bound(id);
  }
  return any;
}

bool Reactor::run_events(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const auto it = watched_.find(events[i].data.fd);
    if (it == watched_.end()) continue;  // unwatched by an earlier callback of this round
    const auto callback = it->second;
    run_for(callback->owner, [&] { callback->function(events[i].events); });
  }
  return count > 0;
}

void Reactor::report(const Owner& owner) noexcept {
  ++failed_callbacks_;
  try {  // what it takes to tell may fail, too
    Error error;
    try {
      throw;
    } catch (const std::bad_alloc&) {
      error = {ErrorKind::kExhausted, "the daemon is out of memory", "give it more, or run fewer jobs", "deftd"};
    } catch (const std::system_error& e) {
      error = {ErrorKind::kExhausted, std::string("the kernel refuses the daemon: ") + e.what(),
               "raise the limits on threads and open files", "deftd"};
    } catch (const std::exception& e) {
      error = {ErrorKind::kInternal, e.what(), "", "deftd"};
    } catch (...) {
      error = {ErrorKind::kInternal, "an unknown exception", "", "deftd"};
    }
    LOG_EVERY_N(ERROR, 100) << "a callback failed (" << failed_callbacks_ << " until now): " << error.message();
    if (const auto told = owner.lock()) told->callback_failed(error);
  } catch (const std::exception& e) {
    RAW_LOG(ERROR, "a callback failed, and its owner could not be told: %s", e.what());
  }
}

int Reactor::timeout_ms() const {
  if (timers_.empty()) return -1;
  const TimeUs wait_us = timers_.begin()->first - MonotonicClock::now();
  if (wait_us <= 0) return 0;
  return static_cast<int>(std::min<TimeUs>((wait_us + 999) / 1000, std::numeric_limits<int>::max()));
}

void Reactor::run() {
  TimeUs last_work = MonotonicClock::now();
  while (!stopping_) {
    bool worked = run_posted();
    worked |= run_timers();
    worked |= run_pollers(false);
    if (worked) {
      last_work = MonotonicClock::now();
      run_events(0);
      continue;
    }
    const bool spinning = spin_us_ > 0 && MonotonicClock::now() - last_work < spin_us_;
    if (!spinning && run_pollers(true)) continue;
    if (run_events(spinning ? 0 : timeout_ms())) last_work = MonotonicClock::now();
  }
  stopping_ = false;
}

}  // namespace deft::daemon
