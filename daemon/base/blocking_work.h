// Runs what may block on threads of its own, so that the event loop never stands still for it: closing a client's socket, allocating
// and freeing large memory, ending a link, asking the resolver. Reactor::offload is how the daemon uses it.
//
//   BlockingWork work;
//   work.run(uid, [] { ... }, [&] { reactor.post(...); });
//
// Each piece of work names a user, whose fault it is if it blocks for long: a user holds at most kThreadsAUser threads, and what other
// users cause does not wait behind it. Threads start when there is work and end when there is none for a while. Any thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>

namespace deft::daemon {

class BlockingWork {
 public:
  static constexpr unsigned kThreadsAUser = 4, kThreads = 64;
  static constexpr uid_t kNobody = static_cast<uid_t>(-1);  // the daemon's own work

  BlockingWork();
  // Drops work that has not begun, and waits a moment for running work. Work that still blocks then goes on alone.
  ~BlockingWork();
  BlockingWork(const BlockingWork&) = delete;
  BlockingWork& operator=(const BlockingWork&) = delete;

  // `work` throws nothing. `after` is called on the same thread when `work` has ended, and never after the destructor. It must not
  // call this object. If the kernel gives no thread at all, both run here and now.
  void run(uid_t user, std::function<void()> work, std::function<void()> after = {});

  // run() for what may outlive this object. From the destructor on, work is done here and now.
  using Runner = std::function<void(uid_t user, std::function<void()> work)>;
  [[nodiscard]] Runner runner() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace deft::daemon
