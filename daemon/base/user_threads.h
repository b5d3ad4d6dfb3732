// Counts the threads that work for each user: one for each link that the daemon runs, and the threads of work that may block.
//
//   const UserThread counted(uid);      // while a thread works for this user
//   threads_by_user();                  // {{1000, 3}}
//
// Counting takes no memory, so it cannot throw on a thread that catches no exceptions. Threads that gloo, ZeroMQ and other libraries
// start by themselves are not counted. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>

namespace deft::daemon {

class UserThread {
 public:
  explicit UserThread(uid_t user) noexcept;
  ~UserThread();
  UserThread(const UserThread&) = delete;
  UserThread& operator=(const UserThread&) = delete;

 private:
  friend std::map<uid_t, std::size_t> threads_by_user();

  const uid_t user_;
  UserThread* next_ = nullptr;  // of the list of all
  UserThread* previous_ = nullptr;
};

std::map<uid_t, std::size_t> threads_by_user();  // of users who have any

}  // namespace deft::daemon
