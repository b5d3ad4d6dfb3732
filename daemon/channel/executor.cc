#include "daemon/channel/executor.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "core/sched/parts.h"

namespace deft::daemon {

// What the threads and the reactor share; callbacks that are still posted when the executor goes find `aborted` set.
struct Executor::Shared {
  std::mutex mutex;
  std::condition_variable condition;
  std::deque<Transfer> queue;
  bool aborted = false;
  bool finished = false;
  std::string reason;
  link::Link* link = nullptr;  // while it may be aborted
};

Executor::Executor(Reactor& reactor, std::string name, std::uint32_t node, Open open, OnOpen on_open, OnDone on_done)
    : reactor_(reactor),
      name_(std::move(name)),
      open_(std::move(open)),
      on_open_(std::move(on_open)),
      on_done_(std::move(on_done)),
      lane_(name_, node, [this](TransferDone done) { tell(std::move(done)); }),
      express_lane_(
          name_, node, [this](TransferDone done) { tell(std::move(done)); }, &lane_),
      shared_(std::make_shared<Shared>()),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), ("link " + name_).substr(0, 15).c_str());
}

Executor::~Executor() {
  abort("the link is closed");
  thread_.join();
}

void Executor::push(Transfer transfer) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->link != nullptr) (belongs_to(lane_, transfer) ? shared_->link : shared_->link->express())->wake();
    shared_->queue.push_back(std::move(transfer));
  }
  shared_->condition.notify_all();
}

void Executor::abort(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->aborted) return;
  shared_->aborted = true;
  shared_->reason = reason;
  shared_->queue.clear();
  if (shared_->link != nullptr) shared_->link->abort(reason);
  shared_->condition.notify_all();
}

bool Executor::finished() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->finished;
}

void Executor::post(std::function<void()> callback) {
  reactor_.post([shared = shared_, callback = std::move(callback)] {
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->aborted) return;
    }
    callback();
  });
}

void Executor::tell(TransferDone done) {
  post([this, done = std::move(done)]() mutable { on_done_(std::move(done)); });
}

bool Executor::open_link() {
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

void Executor::run() {
  if (open_link()) {
    lane_.use(link_.get());
    std::thread express;
    if (link_ && link_->express() != nullptr) {
      express_lane_.use(link_->express());
      express = std::thread([this] { work(express_lane_); });
      pthread_setname_np(express.native_handle(), ("fast " + name_).substr(0, 15).c_str());
    }
    work(lane_);
    if (express.joinable()) express.join();
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->link = nullptr;
  }
  link_.reset();
  lane_.clear();  // not before: the link may have been using their memory
  express_lane_.clear();
  const std::lock_guard lock(shared_->mutex);
  shared_->finished = true;
}

void Executor::work(Lane& lane) {
  while (true) {
    auto transfer = next(lane);
    if (transfer) {
      lane.start(*std::move(transfer));
    } else if (!lane.is_idle()) {
      lane.finish_next();
    } else {
      break;
    }
  }
}

bool Executor::belongs_to(const Lane& lane, const Transfer& transfer) const {
  if (!link_ || link_->express() == nullptr) return true;
  const bool passes = transfer.collective == ipc::Collective::kAllReduce &&
                      sched::passes_others(transfer.count * model::dtype_bytes(transfer.dtype));
  return passes == (&lane == &express_lane_);
}

// The lane's next transfer, where it can start beside those under way. Waits for one where none is under way, and gives
// none then when the executor was aborted.
std::optional<Transfer> Executor::next(Lane& lane) {
  std::unique_lock lock(shared_->mutex);
  auto& queue = shared_->queue;
  const auto first = [&] {
    return std::find_if(queue.begin(), queue.end(), [&](const Transfer& t) { return belongs_to(lane, t); });
  };
  if (lane.is_idle()) shared_->condition.wait(lock, [&] { return shared_->aborted || first() != queue.end(); });
  const auto found = first();
  if (shared_->aborted || found == queue.end() || !lane.has_room_for(*found)) return std::nullopt;
  Transfer transfer = std::move(*found);
  queue.erase(found);
  return transfer;
}

}  // namespace deft::daemon
