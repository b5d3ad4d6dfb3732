#include "daemon/base/reactor.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

namespace deft::daemon {
namespace {

int timeout_ms(std::optional<TimeUs> wait_us) {  // rounded up; -1: for ever
  if (!wait_us) return -1;
  return static_cast<int>(std::min<TimeUs>((*wait_us + 999) / 1000, std::numeric_limits<int>::max()));
}

}  // namespace

Reactor::Reactor(const Clock& clock)
    : clock_(clock),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timers_(clock) {
  PCHECK(epoll_.valid() && wake_.valid()) << "the kernel gives no descriptors for the event loop";
  const auto ok = watch(wake_.get(), EPOLLIN, [this](std::uint32_t) {
    std::uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) > 0) {
    }
  });
  CHECK(ok) << ok.error().message();
}

const Clock& Reactor::system_clock() {
  static const MonotonicClock kClock;
  return kClock;
}

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

Reactor::PollerId Reactor::add_poller(Poller poller) {
  const PollerId id = next_poller_++;
  pollers_[id] = std::make_shared<Owned<Poller>>(Owned<Poller>{std::move(poller), current_owner()});
  return id;
}

void Reactor::post(Callback callback, OwnerRef owner) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back({std::move(callback), std::move(owner)});
  }
  if (!first) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

void Reactor::stop() {
  post([this] { stopping_ = true; });
}

bool Reactor::run_posted() {
  std::vector<Owned<Callback>> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (auto& callback : batch) run_for(callback.owner, "posted work", callback.function);
  return !batch.empty();
}

bool Reactor::run_pollers(bool about_to_sleep) {
  bool any = false;
  // A poller may add or remove pollers, itself included.
  for (auto it = pollers_.begin(); it != pollers_.end();) {
    const PollerId id = it->first;
    const auto poller = it->second;
    run_for(poller->owner, "a poller", [&] { any |= poller->function(about_to_sleep); });
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
    run_for(callback->owner, "the events of a descriptor", [&] { callback->function(events[i].events); });
  }
  return count > 0;
}

bool Reactor::run_ready() {
  bool worked = run_posted();
  worked |= timers_.run_due();
  worked |= run_pollers(false);
  return worked;
}

bool Reactor::run_once() {
  const bool worked = run_ready();
  return run_events(0) || worked;
}

void Reactor::run() {
  TimeUs last_work = now_us();
  while (!stopping_) {
    if (run_ready()) {
      last_work = now_us();
      run_events(0);
      continue;
    }
    const bool spinning = spin_us_ > 0 && now_us() - last_work < spin_us_;
    if (!spinning && run_pollers(true)) continue;
    if (run_events(spinning ? 0 : timeout_ms(timers_.wait_us()))) last_work = now_us();
  }
  stopping_ = false;
}

}  // namespace deft::daemon
