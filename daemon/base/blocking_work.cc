#include "daemon/base/blocking_work.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/signals.h"
#include "daemon/base/user_threads.h"

namespace deft::daemon {
namespace {

constexpr std::chrono::seconds kIdle{2};  // after this long without work a thread ends
constexpr std::chrono::milliseconds kParting{500};

}  // namespace

// The threads share this with their owner, and may outlive it.
struct BlockingWork::Shared {
  struct Piece {
    std::function<void()> work, after;
  };
  struct Queue {  // of a user
    std::deque<Piece> waiting;
    unsigned running = 0;
  };

  std::mutex mutex;  // held for moments only: the event loop waits for it
  std::condition_variable changed;
  std::map<uid_t, Queue> queues;
  uid_t last = 0;  // whose work was taken last: the next user's comes first
  unsigned threads = 0, idle = 0;
  bool ending = false;

  // `after` wakes the event loop, which then wants `mutex`, so it has a mutex of its own. The other one is not held meanwhile.
  std::mutex calling_after;
  bool silent = false;  // the owner has gone

  static bool can_run(const Queue& queue) { return !queue.waiting.empty() && queue.running < kThreadsAUser; }

  // The user whose work is next; nothing: no work may begin.
  [[nodiscard]] std::optional<uid_t> next_user() const {
    auto it = queues.upper_bound(last);
    for (std::size_t tries = 0; tries < queues.size(); ++tries, ++it) {
      if (it == queues.end()) it = queues.begin();
      if (can_run(it->second)) return it->first;
    }
    return std::nullopt;
  }

  // How many pieces could begin now if there were threads.
  [[nodiscard]] unsigned runnable() const {
    std::size_t count = 0;
    for (const auto& [user, queue] : queues)
      count += std::min<std::size_t>(queue.waiting.size(), kThreadsAUser - queue.running);
    return static_cast<unsigned>(count);
  }

  // Without any of the locks when the resources of the piece are given back.
  void perform(uid_t user, Piece piece) {
    std::optional<UserThread> counted;
    if (user != kNobody) counted.emplace(user);
    piece.work();
    piece.work = nullptr;
    if (!piece.after) return;
    const std::lock_guard calling(calling_after);
    if (!silent) piece.after();
  }

  void run_one(std::unique_lock<std::mutex>& lock, uid_t user) {
    last = user;
    Queue& queue = queues[user];  // is not erased while a piece of it runs
    ++queue.running;
    Piece piece = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    lock.unlock();
    perform(user, std::move(piece));
    lock.lock();
    // Nobody is woken: this makes room for one piece, which this thread looks for next.
    if (--queue.running == 0 && queue.waiting.empty()) queues.erase(user);
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (!ending) {
      if (const auto user = next_user()) {
        run_one(lock, *user);
        continue;
      }
      ++idle;
      const bool called = changed.wait_for(lock, kIdle, [this] { return ending || next_user().has_value(); });
      --idle;
      if (!called) break;
    }
    --threads;
    changed.notify_all();
  }

  // False: the kernel gives no thread. The caller has counted it.
  static bool start_thread(const std::shared_ptr<Shared>& shared) {
    const AllSignalsBlocked inherited_by_the_thread;
    try {
      std::thread thread([shared] { shared->serve(); });
      pthread_setname_np(thread.native_handle(), "deft blocking");
      thread.detach();
    } catch (const std::exception&) {  // no thread, or no memory for one
      return false;
    }
    return true;
  }

  static void run(const std::shared_ptr<Shared>& shared, uid_t user, Piece piece) {
    std::unique_lock lock(shared->mutex);
    if (shared->ending) {
      lock.unlock();
      return run_here(piece);
    }
    shared->queues[user].waiting.push_back(std::move(piece));
    const bool more = shared->runnable() > shared->idle && shared->threads < kThreads;
    if (more) ++shared->threads;
    lock.unlock();
    if (!more) return shared->changed.notify_one();
    if (start_thread(shared)) return;
    lock.lock();
    auto& waiting = shared->queues[user].waiting;
    if (--shared->threads > 0 || waiting.empty()) return shared->changed.notify_one();
    const Piece last = std::move(waiting.back());
    waiting.pop_back();
    lock.unlock();
    run_here(last);
  }

  static void run_here(const Piece& piece) {
    piece.work();
    if (piece.after) piece.after();
  }
};

BlockingWork::BlockingWork() : shared_(std::make_shared<Shared>()) {}

BlockingWork::~BlockingWork() {
  {
    const std::lock_guard calling(shared_->calling_after);
    shared_->silent = true;
  }
  std::map<uid_t, Shared::Queue> dropped;  // destroyed without the lock
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  for (auto& [user, queue] : shared_->queues) dropped[user].waiting.swap(queue.waiting);
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kParting, [this] { return shared_->threads == 0; });
}

void BlockingWork::run(uid_t user, std::function<void()> work, std::function<void()> after) {
  Shared::run(shared_, user, {std::move(work), std::move(after)});
}

BlockingWork::Runner BlockingWork::runner() const {
  return [shared = shared_](uid_t user, std::function<void()> work) {
    Shared::run(shared, user, {std::move(work), nullptr});
  };
}

}  // namespace deft::daemon
