#include "daemon/executor.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/reduce/reduce.h"

namespace deft::daemon {
namespace {

void take(const Transfer& transfer, const std::byte* data, std::size_t bytes) {
  if (!transfer.contribution || transfer.contribution->taken) return;
  Contribution& kept = *transfer.contribution;
  kept.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
  kept.bytes = bytes;
  if (bytes > 0) std::memcpy(kept.data.get(), data, bytes);
  kept.taken = true;
}

std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

}  // namespace

// What the thread and the reactor share; callbacks that are still posted when the executor goes find `aborted` set.
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
      node_(node),
      open_(std::move(open)),
      on_open_(std::move(on_open)),
      on_done_(std::move(on_done)),
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
    shared_->queue.push_back(std::move(transfer));
    if (shared_->link != nullptr) shared_->link->wake();
  }
  shared_->condition.notify_one();
}

void Executor::abort(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->aborted) return;
  shared_->aborted = true;
  shared_->reason = reason;
  shared_->queue.clear();
  if (shared_->link != nullptr) shared_->link->abort(reason);
  shared_->condition.notify_one();
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
    while (true) {
      auto transfer = next();
      if (transfer) {
        start(*std::move(transfer));
      } else if (!flights_.empty()) {
        finish_next();
      } else {
        break;
      }
    }
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->link = nullptr;
  }
  link_.reset();
  flights_.clear();  // not before: the link may have been using their memory
  const std::lock_guard lock(shared_->mutex);
  shared_->finished = true;
}

// The next transfer, where it can start beside those under way: only all-reduces share the link. Waits for one where none
// is under way, and gives none then when the executor was aborted.
std::optional<Transfer> Executor::next() {
  std::unique_lock lock(shared_->mutex);
  auto& queue = shared_->queue;
  if (flights_.empty()) {
    shared_->condition.wait(lock, [&] { return shared_->aborted || !queue.empty(); });
  } else if (queue.empty() || queue.front().collective != ipc::Collective::kAllReduce || !link_ ||
             flights_.size() >= link_->depth()) {
    return std::nullopt;
  }
  if (shared_->aborted) return std::nullopt;
  Transfer transfer = std::move(queue.front());
  queue.pop_front();
  return transfer;
}

// All-reduces up to where the link's peers would have to be waited for, other collectives altogether.
void Executor::start(Transfer transfer) {
  Flight& flight = flights_.emplace_back();
  flight.transfer = std::move(transfer);
  flight.began_us = MonotonicClock::now();
  TransferDone& done = flight.done;
  done.token = flight.transfer.token;
  if (flight.transfer.buffers.empty() && flight.transfer.contribution) use_own_memory(flight);
  switch (flight.transfer.collective) {
    case ipc::Collective::kAllReduce: done.result = start_all_reduce(flight); break;
    case ipc::Collective::kBroadcast: done.result = run_broadcast(flight.transfer, done); break;
    case ipc::Collective::kAllGather: done.result = run_all_gather(flight.transfer, done); break;
    case ipc::Collective::kBarrier: break;
  }
}

// Waits for the next one that ends, or until there may be one to start.
void Executor::finish_next() {
  if (flights_.front().link_began_us == 0) return report(0, flights_.front().done.result);
  const auto ended = link_->finish_next();
  if (!ended) return report(0, tl::unexpected(ended.error()));
  if (!*ended) return;
  std::size_t place = 0;  // among all flights, of that one among those in the link
  for (std::size_t before = **ended; before > 0 || flights_[place].link_began_us == 0; ++place)
    if (flights_[place].link_began_us != 0) --before;
  report(place, {});
}

// The times of flights add up: each counts from the end of the one before, or from where the oldest under way began.
void Executor::report(std::size_t place, Result<void> result) {
  const Flight& oldest = flights_.front();
  Flight& flight = flights_[place];
  TransferDone& done = flight.done;
  done.result = std::move(result);
  if (flight.link_began_us != 0) {
    const TimeUs now = MonotonicClock::now();
    const TimeUs link_began_us = oldest.link_began_us != 0 ? oldest.link_began_us : flight.link_began_us;
    done.overlapped = place > 0 || flight.link_began_us < link_free_us_;
    done.link_us = now - std::max(link_began_us, link_free_us_);
    link_free_us_ = now;
  }
  const Transfer& transfer = flight.transfer;
  if (done.result && transfer.collective == ipc::Collective::kAllReduce)
    for (std::size_t i = 1; i < transfer.buffers.size(); ++i)
      std::memcpy(transfer.buffers[i], transfer.buffers.front(), done.bytes);
  if (!done.result) done.result = tl::unexpected(done.result.error().in("link " + name_));
  const TimeUs now = MonotonicClock::now();
  done.busy_us = now - std::max(oldest.began_us, free_us_);
  free_us_ = now;
  TransferDone ended = std::move(done);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
  post([this, done = std::move(ended)]() mutable { on_done_(std::move(done)); });
}

// In an all-gather all blocks of the nodes before this one come first.
std::size_t Executor::own_offset(const Transfer& transfer) const {
  const auto begin = transfer.node_bytes.begin();
  return std::accumulate(begin, begin + node_, std::size_t{0});
}

void Executor::use_own_memory(Flight& flight) const {
  Transfer& transfer = flight.transfer;
  const Contribution& kept = *transfer.contribution;
  if (transfer.collective == ipc::Collective::kBarrier) return;
  const bool gathers = transfer.collective == ipc::Collective::kAllGather;
  const std::size_t bytes = gathers ? sum_of(transfer.node_bytes) : transfer.count * model::dtype_bytes(transfer.dtype);
  flight.own = std::make_unique_for_overwrite<std::byte[]>(bytes);
  transfer.buffers = {flight.own.get()};
  transfer.root_local = 0;
  if (kept.bytes > 0) std::memcpy(flight.own.get() + (gathers ? own_offset(transfer) : 0), kept.data.get(), kept.bytes);
}

Result<void> Executor::start_all_reduce(Flight& flight) {
  const Transfer& transfer = flight.transfer;
  std::byte* const sum = transfer.buffers.front();
  flight.done.bytes = transfer.count * model::dtype_bytes(transfer.dtype);
  if (transfer.contribution && transfer.contribution->taken) {
    if (!flight.own && flight.done.bytes > 0) std::memcpy(sum, transfer.contribution->data.get(), flight.done.bytes);
  } else if (transfer.buffers.size() > 1) {
    reduce::reduce(sum, {transfer.buffers.data(), transfer.buffers.size()}, transfer.count, transfer.dtype,
                   transfer.op);
  }
  if (!link_) return {};
  take(transfer, sum, flight.done.bytes);
  flight.link_began_us = MonotonicClock::now();
  auto started = link_->start_all_reduce(sum, transfer.count, transfer.dtype, transfer.op, transfer.urgency);
  if (!started) flight.link_began_us = 0;
  return started;
}

Result<void> Executor::run_broadcast(const Transfer& transfer, TransferDone& done) {
  const std::size_t source = transfer.root_node == node_ ? transfer.root_local : 0;
  done.bytes = transfer.count * model::dtype_bytes(transfer.dtype);
  if (link_) {
    take(transfer, transfer.buffers[source], transfer.root_node == node_ ? done.bytes : 0);
    const TimeUs began = MonotonicClock::now();
    if (auto ok = link_->broadcast(transfer.buffers[source], done.bytes, transfer.root_node); !ok) return ok;
    done.link_us = MonotonicClock::now() - began;
  }
  for (std::size_t i = 0; i < transfer.buffers.size(); ++i)
    if (i != source) std::memcpy(transfer.buffers[i], transfer.buffers[source], done.bytes);
  return {};
}

// Every worker's buffer has room for all blocks, in the order of nodes and, within a node, of ranks.
Result<void> Executor::run_all_gather(const Transfer& transfer, TransferDone& done) {
  std::byte* const all = transfer.buffers.front();
  const std::size_t total = sum_of(transfer.node_bytes);
  std::size_t own = own_offset(transfer);
  for (std::size_t i = 0; i < transfer.buffers.size(); ++i) {
    if (i > 0) std::memcpy(all + own, transfer.buffers[i] + own, transfer.local_bytes[i]);
    own += transfer.local_bytes[i];
  }
  done.bytes = total;
  if (link_) {
    take(transfer, all + own_offset(transfer), transfer.node_bytes[node_]);
    const TimeUs began = MonotonicClock::now();
    if (auto ok = link_->all_gather(all, transfer.node_bytes); !ok) return ok;
    done.link_us = MonotonicClock::now() - began;
  }
  for (std::size_t i = 1; i < transfer.buffers.size(); ++i) std::memcpy(transfer.buffers[i], all, total);
  return {};
}

}  // namespace deft::daemon
