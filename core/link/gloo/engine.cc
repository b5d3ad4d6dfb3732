#include "core/link/gloo/engine.h"

#include <gloo/transport/buffer.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/base/signals.h"

namespace deft::link::gloo_backend {

void News::raise() {
  {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  raised_.notify_one();
}

std::uint64_t News::count() {
  const std::lock_guard lock(mutex_);
  return count_;
}

void News::await_beyond(std::uint64_t known) {
  std::unique_lock lock(mutex_);
  raised_.wait(lock, [&] { return count_ > known; });
}

Engine::Engine(Mesh& mesh, News& news) : mesh_(mesh), news_(news), transport_(mesh, kDepth) {
  static_assert(kDepth <= Transport::kMostInFlight);
  const AllSignalsBlocked inherited_by_the_threads;
  reducing_ = std::thread([this] { run(to_reduce_, &InFlight::needs_reducer, &Engine::reduce_entry); });
  try {
    collecting_ = std::thread([this] { run(to_collect_, &InFlight::needs_collector, &Engine::collect_entry); });
  } catch (...) {  // the kernel gives one thread and no second one
    halt();
    throw;
  }
  pthread_setname_np(reducing_.native_handle(), "gloo reduces");
  pthread_setname_np(collecting_.native_handle(), "gloo collects");
}

Engine::~Engine() { halt(); }

void Engine::start(const WorkRequest& request) {
  InFlight made;
  made.id = request.id;
  if (request.reduces()) {
    made.segmented = transport_.cut(request);
    made.peers = transport_.connect(*made.segmented);
  } else {
    made.exchange = std::make_unique<BlockExchange>(mesh_, request, started_exchanges_++);
  }
  const bool needs_reducer = made.needs_reducer(), needs_collector = made.needs_collector();
  {
    const std::lock_guard lock(mutex_);
    if (state_.failure) throw PeerFailure(*state_.failure);
    state_.in_flight.push_back(std::move(made));
    try {
      begin(state_.in_flight.back());
    } catch (const PeerFailure& failure) {
      // Before a thread can begin it: gloo tells no waiting thread of buffers that are registered after a pair has failed.
      end_by(failure);
      throw;
    }
  }
  if (needs_reducer) to_reduce_.notify_one();
  if (needs_collector) to_collect_.notify_one();
}

// Sends what may go already. With the lock held; the threads are woken later, or they would wait for the lock.
void Engine::begin(InFlight& entry) {
  if (entry.exchange) return;
  Segmented& segmented = *entry.segmented;
  if (segmented.whole) {
    segmented.first_round = started_whole_++;
    transport_.send_segments(segmented, entry.peers, 0);
  } else {
    segmented.first_round = state_.started_rounds;
    state_.started_rounds += segmented.slices.rounds;
    fill_window();
  }
}

std::optional<std::uint64_t> Engine::take_ended() {
  InFlight oldest;  // its buffers are released after the lock
  const std::lock_guard lock(mutex_);
  const bool ended = !state_.in_flight.empty() && state_.in_flight.front().ended;
  if (!ended && state_.failure) throw PeerFailure(*state_.failure);
  if (!ended) return std::nullopt;
  oldest = std::move(state_.in_flight.front());
  state_.in_flight.pop_front();
  ++state_.finished;
  return oldest.id;
}

void Engine::halt() {
  {
    const std::lock_guard lock(mutex_);
    state_.halted = true;
  }
  to_reduce_.notify_one();
  to_collect_.notify_one();
  if (reducing_.joinable()) reducing_.join();
  if (collecting_.joinable()) collecting_.join();
}

void Engine::add_thread_clocks(std::vector<ThreadClock>& clocks, std::uint16_t number) {
  if (reducing_.joinable()) add_clock(clocks, model::DaemonThread::kAdds, number, reducing_.native_handle());
  if (collecting_.joinable()) add_clock(clocks, model::DaemonThread::kCollects, number, collecting_.native_handle());
}

// Sends the segments of as many rounds as have a free slot, of the requests in their order.
void Engine::fill_window() {
  for (InFlight& entry : state_.in_flight) {
    if (entry.exchange) continue;
    Segmented& segmented = *entry.segmented;
    for (; segmented.sent < segmented.slices.rounds; ++segmented.sent) {
      if (segmented.first_round + segmented.sent >= state_.acknowledged + Transport::kWindow) return;
      transport_.send_segments(segmented, entry.peers, segmented.sent);
    }
  }
}

// A thread: handles, in their order, all entries that need it, until there is a failure or the halt.
void Engine::run(std::condition_variable& work, bool (InFlight::*needs)() const, void (Engine::*handle)(InFlight&)) {
  try {
    std::uint64_t next = 0;
    while (InFlight* const entry = await_entry(next, work, needs)) (this->*handle)(*entry);
  } catch (const PeerFailure& failure) {
    const std::lock_guard lock(mutex_);
    end_by(failure);
  } catch (const std::exception& error) {  // memory ran out here
    const std::lock_guard lock(mutex_);
    end_by(PeerFailure(mesh_.node(), error.what()));
  }
}

void Engine::end_by(const PeerFailure& failure) {
  if (!state_.failure) state_.failure = failure;
  to_reduce_.notify_one();
  to_collect_.notify_one();
  news_.raise();
}

// The first of the entries from number `next` on for which `needs` holds; `next` is then that of the one after it. Null
// when there will be none. The others may end and go at any time.
Engine::InFlight* Engine::await_entry(std::uint64_t& next, std::condition_variable& work,
                                      bool (InFlight::*needs)() const) {
  std::unique_lock lock(mutex_);
  while (!is_over()) {
    for (next = std::max(next, state_.finished); next < state_.finished + state_.in_flight.size();) {
      InFlight& entry = state_.in_flight[next++ - state_.finished];
      if ((entry.*needs)()) return &entry;
    }
    work.wait(lock);
  }
  return nullptr;
}

void Engine::end(InFlight& entry) {
  {
    const std::lock_guard lock(mutex_);
    entry.ended = true;
  }
  news_.raise();
}

void Engine::own(const InFlight& entry, Range mine, std::uint64_t round) {
  entry.segmented->own(mine, transport_.inputs(*entry.segmented, mine, round));
}

void Engine::reduce_entry(InFlight& entry) {
  const Segmented& segmented = *entry.segmented;
  if (segmented.whole) {
    transport_.await_segments(segmented, 0);
    transport_.await_sends(entry.peers);
    own(entry, {0, segmented.request.count}, 0);
    return end(entry);
  }
  for (std::uint64_t round = 0; round < segmented.slices.rounds; ++round) {
    const Range mine = segmented.mine(round);
    if (mine.count == 0) continue;
    transport_.await_segments(segmented, round);
    own(entry, mine, round);
    transport_.send_results(segmented, entry.peers, round);
  }
  {
    const std::lock_guard lock(mutex_);
    entry.reduced = true;
  }
  to_collect_.notify_one();
}

void Engine::collect_entry(InFlight& entry) {
  if (entry.exchange) {
    entry.exchange->wait();
    return end(entry);
  }
  for (std::uint64_t round = 0; round < entry.segmented->slices.rounds; ++round) {
    transport_.await_results(*entry.segmented, entry.peers, round);
    const std::lock_guard lock(mutex_);
    ++state_.acknowledged;
    fill_window();
  }
  {
    std::unique_lock lock(mutex_);
    to_collect_.wait(lock, [&] { return entry.reduced || is_over(); });
    if (!entry.reduced) return;
  }
  transport_.await_sends(entry.peers);
  end(entry);
}

}  // namespace deft::link::gloo_backend
