#include "daemon/channel/daemon_driver.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "core/model/parts.h"

namespace deft::daemon {

// What the threads and the reactor share; callbacks that are still posted when the driver goes find `aborted` set.
struct DaemonDriver::Shared {
  std::mutex mutex;
  std::condition_variable condition;
  std::deque<Transfer> queue;
  bool aborted = false;
  bool finished = false;
  std::string reason;
  link::Link* link = nullptr;  // while it may be aborted
};

DaemonDriver::DaemonDriver(Reactor& reactor, std::string name, std::uint32_t node, Open open,
                           MakeTransfer make_transfer, OnOpen on_open, OnDone on_done)
    : reactor_(reactor),
      name_(std::move(name)),
      open_(std::move(open)),
      make_transfer_(std::move(make_transfer)),
      on_open_(std::move(on_open)),
      on_done_(std::move(on_done)),
      channel_(name_, node, [this](TransferDone done) { tell(std::move(done)); }),
      express_channel_(
          name_, node, [this](TransferDone done) { tell(std::move(done)); }, &channel_),
      shared_(std::make_shared<Shared>()),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), ("link " + name_).substr(0, 15).c_str());
}

DaemonDriver::~DaemonDriver() {
  abort("the link is closed");
  thread_.join();
}

void DaemonDriver::push(Transfer transfer) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->link != nullptr) (belongs_to(channel_, transfer) ? shared_->link : shared_->link->express())->wake();
    shared_->queue.push_back(std::move(transfer));
  }
  shared_->condition.notify_all();
}

void DaemonDriver::abort(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->aborted) return;
  shared_->aborted = true;
  shared_->reason = reason;
  shared_->queue.clear();
  if (shared_->link != nullptr) shared_->link->abort(reason);
  shared_->condition.notify_all();
}

Result<void> DaemonDriver::answered(std::size_t /*worker*/, std::uint64_t /*token*/) {
  return fail(ErrorKind::kViolation, "a worker says that it ran a launch of " + name_ + ", which the daemon runs");
}

bool DaemonDriver::finished() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->finished;
}

void DaemonDriver::post(std::function<void()> callback) {
  reactor_.post([shared = shared_, callback = std::move(callback)] {
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->aborted) return;
    }
    callback();
  });
}

void DaemonDriver::tell(TransferDone done) {
  post([this, done = std::move(done)]() mutable { on_done_(std::move(done)); });
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

void DaemonDriver::run() {
  if (open_link()) {
    channel_.use(link_.get());
    std::thread express;
    if (link_ && link_->express() != nullptr) {
      express_channel_.use(link_->express());
      express = std::thread([this] { work(express_channel_); });
      pthread_setname_np(express.native_handle(), ("fast " + name_).substr(0, 15).c_str());
    }
    work(channel_);
    if (express.joinable()) express.join();
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->link = nullptr;
  }
  link_.reset();
  channel_.clear();  // not before: the link may have been using their memory
  express_channel_.clear();
  const std::lock_guard lock(shared_->mutex);
  shared_->finished = true;
}

void DaemonDriver::work(Channel& channel) {
  while (true) {
    auto transfer = next(channel);
    if (transfer) {
      channel.start(*std::move(transfer));
    } else if (!channel.is_idle()) {
      channel.finish_next();
    } else {
      break;
    }
  }
}

bool DaemonDriver::belongs_to(const Channel& channel, const Transfer& transfer) const {
  if (!link_ || link_->express() == nullptr) return true;
  const bool passes = transfer.collective == ipc::Collective::kAllReduce &&
                      model::is_small(transfer.count * model::dtype_bytes(transfer.dtype));
  return passes == (&channel == &express_channel_);
}

// The channel's next transfer, where it can start beside those under way. Waits for one where none is under way, and gives
// none then when the driver was aborted.
std::optional<Transfer> DaemonDriver::next(Channel& channel) {
  std::unique_lock lock(shared_->mutex);
  auto& queue = shared_->queue;
  const auto first = [&] {
    return std::find_if(queue.begin(), queue.end(), [&](const Transfer& t) { return belongs_to(channel, t); });
  };
  if (channel.is_idle()) shared_->condition.wait(lock, [&] { return shared_->aborted || first() != queue.end(); });
  const auto found = first();
  if (shared_->aborted || found == queue.end() || !channel.has_room_for(*found)) return std::nullopt;
  Transfer transfer = std::move(*found);
  queue.erase(found);
  return transfer;
}

}  // namespace deft::daemon
