#include "daemon/base/reactor.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace deft::daemon {
namespace {

int timeout_ms(std::optional<TimeUs> wait_us) {  // rounded up; -1: for ever
  if (!wait_us) return -1;
  return static_cast<int>(std::min<TimeUs>((*wait_us + 999) / 1000, std::numeric_limits<int>::max()));
}

// The innermost callback names what ran: "a worker's request" tells more than "the events of a descriptor".
void note_callback(LoopMeter& meter, std::string_view what, TimeUs machine_us) {
  const std::string_view newest = take_newest_callback();
  meter.ran(newest.empty() ? what : newest, machine_us);
}

}  // namespace

Reactor::Reactor(const Clock& clock)
    : clock_(clock),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timers_(clock_) {
  PCHECK(epoll_.valid() && wake_.valid()) << "the kernel gives no descriptors for the event loop";
  const auto ok = watch(wake_.get(), EPOLLIN, [this](std::uint32_t) {
    std::uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) > 0) {
    }
  });
  CHECK(ok) << ok.error().message();
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

Reactor::TimerId Reactor::after(TimeUs delay_us, Callback callback) {
  clock_.expect_also_by(clock_.now_us() + std::max<TimeUs>(delay_us, 0));
  return timers_.add(delay_us, std::move(callback));
}

Reactor::PollerId Reactor::add_poller(Poller poller) {
  const PollerId id = next_poller_++;
  pollers_[id] = std::make_shared<Owned<Poller>>(Owned<Poller>{std::move(poller), current_owner()});
  return id;
}

void Reactor::post(Callback callback, OwnerRef owner) {
  bool first = false;
  {
    const std::lock_guard lock(inbox_.mutex);
    first = inbox_.posted.empty();
    inbox_.posted.push_back({std::move(callback), std::move(owner)});
  }
  if (!first) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

void Reactor::stop() {
  post([this] { stopping_ = true; });
}

void Reactor::offload(uid_t user, std::function<void()> work, Callback done) {
  const auto thrown = std::make_shared<std::exception_ptr>();
  auto run = [work = std::move(work), thrown] {
    try {
      work();
    } catch (...) {
      *thrown = std::current_exception();
    }
  };
  auto tell = [this, thrown, done = std::move(done), owner = current_owner()] {
    const auto ended = [thrown, done] {
      if (*thrown) std::rethrow_exception(*thrown);
      if (done) done();
    };
    post(ended, owner);
  };
  blocking_.run(user, std::move(run), std::move(tell));
}

bool Reactor::run_pollers(bool about_to_sleep) {
  bool any = false;
  // A poller may add or remove pollers, itself included.
  for (auto it = pollers_.begin(); it != pollers_.end();) {
    const PollerId id = it->first;
    const auto poller = it->second;
    run_for(poller->owner, "a poller", [&] { any |= poller->function(about_to_sleep); });
    note_callback(meter_, "a poller", clock_.machine_us());
    it = pollers_.upper_bound(id);
  }
  return any;
}

bool Reactor::run_events(int timeout_ms) {
  std::array<epoll_event, 64> events;
  meter_.turn_ended(clock_.machine_us());
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  meter_.turn_began(clock_.machine_us());
  for (int i = 0; i < count; ++i) {
    const auto it = watched_.find(events[i].data.fd);
    if (it == watched_.end()) continue;  // unwatched by an earlier callback of this round
    const auto callback = it->second;
    run_for(callback->owner, "the events of a descriptor", [&] { callback->function(events[i].events); });
    note_callback(meter_, "the events of a descriptor", clock_.machine_us());
  }
  return count > 0;
}

// A round's length does not tell of a standstill: a stop may hit the wait for events, and a callback may rightly take long.
void Reactor::expect_timer() {
  if (const TimeUs still_us = clock_.leave_out_standstill(); still_us != 0) {
    LOG(WARNING) << "this process stood still for " << still_us / 1000 << " ms: deadlines do not count that";
    meter_.turn_began(clock_.machine_us());
  }
  auto next_us = timers_.next_us();
  if (next_us) next_us = std::max(*next_us, now_us());  // a timer that is due runs now, and its delay has been noticed
  clock_.expect_by(next_us);
}

bool Reactor::run_ready() {
  std::vector<Owned<Callback>> posted;
  {
    const std::lock_guard lock(inbox_.mutex);
    posted.swap(inbox_.posted);
  }
  for (auto& callback : posted) {
    run_for(callback.owner, "posted work", callback.function);
    note_callback(meter_, "posted work", clock_.machine_us());
  }
  bool worked = !posted.empty();
  worked |= timers_.run_due([this] { note_callback(meter_, "a timer", clock_.machine_us()); });
  worked |= run_pollers(false);
  return worked;
}

bool Reactor::run_once() {
  meter_.turn_began(clock_.machine_us());
  const bool worked = run_ready();
  return run_events(0) || worked;
}

void Reactor::run() {
  TimeUs last_work = now_us();
  meter_.turn_began(clock_.machine_us());
  while (!stopping_) {
    expect_timer();
    const bool worked = run_ready();
    expect_timer();
    if (worked) {
      last_work = now_us();
      run_events(0);
      continue;
    }
    const bool spinning = spin_us_ > 0 && now_us() - last_work < spin_us_;
    if (!spinning && run_pollers(true)) continue;
    if (run_events(spinning ? 0 : timeout_ms(timers_.wait_us()))) last_work = now_us();
  }
  stopping_ = false;
  clock_.expect_by(std::nullopt);
}

}  // namespace deft::daemon
