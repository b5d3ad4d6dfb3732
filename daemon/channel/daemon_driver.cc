#include "daemon/channel/daemon_driver.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "core/link/backends.h"

namespace deft::daemon {

// The thread and the reactor share this. Callbacks that are still posted when the driver goes find `aborted` set.
struct DaemonDriver::Shared {
  std::mutex mutex;
  std::condition_variable condition;
  std::deque<Transfer> queue;
  std::atomic<bool> aborted{false};  // set by the reactor at once, and under the mutex before the thread is woken
  std::atomic<bool> finished{false};
  std::string reason;
  link::Link* link = nullptr;  // while it may be aborted

  void abort(const std::string& why) {
    const std::lock_guard lock(mutex);
    aborted = true;
    reason = why;
    queue.clear();
    if (link != nullptr) link->abort(why);
    condition.notify_all();
  }
};

DaemonDriver::DaemonDriver(Reactor& reactor, std::string name, std::uint32_t node, Open open,
                           MakeTransfer make_transfer, OnOpen on_open, OnDone on_done)
    : reactor_(reactor),
      owner_(current_owner()),
      name_(std::move(name)),
      open_(std::move(open)),
      make_transfer_(std::move(make_transfer)),
      on_open_(std::move(on_open)),
      on_done_(std::move(on_done)),
      channel_(
          name_, node,
          [this](TransferDone done) { post([this, done = std::move(done)]() mutable { on_done_(std::move(done)); }); }),
      shared_(std::make_shared<Shared>()),
      thread_([this] { run(); }) {}

DaemonDriver::~DaemonDriver() {
  shared_->abort("the link is closed");
  thread_.join();
}

void DaemonDriver::push(Transfer transfer) {
  if (shared_->aborted) return;  // the mutex may be held by the abort, which may take a while
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->queue.push_back(std::move(transfer));
    if (shared_->link != nullptr) shared_->link->interrupt();
  }
  shared_->condition.notify_all();
}

// A link may take a while to end what runs on it, and the event loop must not wait for that.
void DaemonDriver::abort(const std::string& reason) {
  if (shared_->aborted.exchange(true)) return;
  reactor_.offload(BlockingWork::kNobody, [shared = shared_, reason] { shared->abort(reason); });
}

Result<void> DaemonDriver::answered(std::size_t /*worker*/, std::uint64_t /*token*/) {
  return fail(ErrorKind::kViolation, "a worker says that it ran a launch of " + name_ + ", which the daemon runs");
}

Result<void> DaemonDriver::waits(std::size_t /*worker*/, std::uint64_t /*token*/) {
  return fail(ErrorKind::kViolation, "a worker says that it runs a launch of " + name_ + ", which the daemon runs");
}

Result<void> DaemonDriver::moved(std::size_t /*worker*/, const shm::SegmentRecord& /*segment*/) {
  return fail(ErrorKind::kViolation, "a worker told of data of a link that the daemon runs");
}

bool DaemonDriver::finished() { return shared_->finished; }

void DaemonDriver::post(std::function<void()> callback) {
  const auto run = [shared = shared_, callback = std::move(callback)] {
    if (!shared->aborted) callback();
  };
  reactor_.post(run, owner_);
}

void DaemonDriver::guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    post([this, error = error_of_exception("link " + name_)] { on_open_(tl::unexpected(error)); });
  }
}

bool DaemonDriver::open_link() {
  auto opened = open_();
  Result<void> result;
  if (opened) {
    link_ = std::move(*opened);
    const std::lock_guard lock(shared_->mutex);
    shared_->link = link_.get();
    if (shared_->aborted && link_) link_->abort(shared_->reason);
  } else {
    result = tl::unexpected(opened.error().in("open link " + name_));
  }
  const bool ok = result.has_value();
  post([this, result] { on_open_(result); });
  return ok;
}

void DaemonDriver::run_link() {
  if (!open_link()) return;
  channel_.use(link_.get());
  while (true) {
    if (auto transfer = channel_.takes_transfers() ? next() : std::nullopt) {
      channel_.start(*std::move(transfer));
    } else if (!channel_.is_idle()) {
      channel_.poll();
    } else {
      break;
    }
  }
}

void DaemonDriver::run() {
  std::array<char, 16> title{};
  std::snprintf(title.data(), title.size(), "link %s", name_.c_str());
  pthread_setname_np(pthread_self(), title.data());
  guarded([this] { run_link(); });
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->link = nullptr;
  }
  link_.reset();
  channel_.clear();  // not before: the link may have been using their memory
  const std::lock_guard lock(shared_->mutex);
  shared_->finished = true;
}

// Ends also after an abort. Meanwhile takes what peers send unasked.
void DaemonDriver::await_transfer(std::unique_lock<std::mutex>& lock) {
  const auto has_come = [&] { return shared_->aborted || !shared_->queue.empty(); };
  if (link_ == nullptr || !link::receives_unasked(name_)) return shared_->condition.wait(lock, has_come);
  while (!shared_->condition.wait_for(lock, std::chrono::microseconds(link::Link::kUnaskedUs), has_come)) {
    lock.unlock();
    static_cast<void>(link_->poll());  // an error is the next transfer's
    lock.lock();
  }
}

// The next transfer, if there is one. Waits for it while nothing is in flight, and gives none then after an abort.
std::optional<Transfer> DaemonDriver::next() {
  std::unique_lock lock(shared_->mutex);
  auto& queue = shared_->queue;
  if (channel_.is_idle()) await_transfer(lock);
  if (shared_->aborted || queue.empty()) return std::nullopt;
  Transfer transfer = std::move(queue.front());
  queue.pop_front();
  return transfer;
}

}  // namespace deft::daemon
