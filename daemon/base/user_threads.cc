#include "daemon/base/user_threads.h"

#include <mutex>

namespace deft::daemon {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<uid_t, std::size_t> threads;
};

// Never destroyed: a thread that blocks may outlive main().
Counts& counts() {
  static auto* const all = new Counts;
  return *all;
}

}  // namespace

UserThread::UserThread(uid_t user) : user_(user) {
  const std::lock_guard lock(counts().mutex);
  ++counts().threads[user_];
}

UserThread::~UserThread() {
  const std::lock_guard lock(counts().mutex);
  const auto found = counts().threads.find(user_);
  if (--found->second == 0) counts().threads.erase(found);
}

std::map<uid_t, std::size_t> threads_by_user() {
  const std::lock_guard lock(counts().mutex);
  return counts().threads;
}

}  // namespace deft::daemon
