#include "daemon/base/user_threads.h"

#include <mutex>
#include <type_traits>

namespace deft::daemon {
namespace {

// A thread that blocks may outlive main(), and finds them as they were.
constinit std::mutex threads_mutex;
constinit UserThread* newest_thread = nullptr;
static_assert(std::is_trivially_destructible_v<std::mutex>);

}  // namespace

UserThread::UserThread(uid_t user) noexcept : user_(user) {
  const std::lock_guard lock(threads_mutex);
  next_ = newest_thread;
  if (next_ != nullptr) next_->previous_ = this;
  newest_thread = this;
}

UserThread::~UserThread() {
  const std::lock_guard lock(threads_mutex);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : newest_thread) = next_;
}

std::map<uid_t, std::size_t> threads_by_user() {
  std::map<uid_t, std::size_t> threads;
  const std::lock_guard lock(threads_mutex);
  for (const UserThread* one = newest_thread; one != nullptr; one = one->next_) ++threads[one->user_];
  return threads;
}

}  // namespace deft::daemon
