// Shared by the files of the C interface (deft.h): its objects, and how results become DEFT_E* numbers.
//
//   int deft_something(deft_session* session, deft_error* error) {
//     return guarded(error, [&] { return report(session->session->something(), error); });   // no exception leaves it
//   }
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/client/completions.h"
#include "core/client/deft.h"
#include "core/client/gradient_group.h"
#include "core/client/staged_collective.h"
#include "core/client/worker_links.h"

struct deft_session;

struct deft_group {  // outlives its group, so that a call after the release is an error and no more
  using Group = std::shared_ptr<deft::client::GradientGroup>;
  deft_group(deft_session* of, Group declared) : session(of), group(std::move(declared)) {}
  [[nodiscard]] Group use() const {  // null: it was released
    const std::lock_guard lock(mutex);
    return group;
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    group.reset();
  }
  deft_session* const session;
  mutable std::mutex mutex;
  Group group;
};

struct deft_operation {
  deft_session* session;
  std::unique_ptr<deft::client::StagedCollective> operation;
};

struct deft_session {
  explicit deft_session(std::unique_ptr<deft::client::Session> opened)
      : session(std::move(opened)), buffers(*session), completions(*session) {}
  std::unique_ptr<deft::client::Session> session;
  deft::client::StagingBuffers buffers;
  std::mutex mutex;
  std::condition_variable all_left;
  unsigned calls = 0;  // that may wait, and are in the session
  std::vector<std::unique_ptr<deft_group>> groups;
  std::unordered_map<deft_operation*, std::unique_ptr<deft_operation>> operations;
  std::unique_ptr<deft::client::WorkerLinks> links;  // goes before the memory that its threads work on
  deft::client::Completions completions;             // the first to go: its callbacks use all of the above
};

namespace deft::client {

// A call that may wait. deft_close ends its wait, and then lets it leave the session, which it still uses.
class WaitingCall {
 public:
  explicit WaitingCall(deft_session* session)  // null: there is none
      : session_(session == nullptr || session->session->connection().in_fork() ? nullptr : session) {
    if (session_ == nullptr) return;
    const std::lock_guard lock(session_->mutex);
    ++session_->calls;
  }
  ~WaitingCall() {
    if (session_ == nullptr) return;
    const std::lock_guard lock(session_->mutex);
    if (--session_->calls == 0) session_->all_left.notify_all();
  }
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;

 private:
  deft_session* const session_;
};

inline int report(const Error& error, deft_error* out) {
  const int kind = static_cast<int>(error.kind);
  if (out == nullptr) return kind;
  out->kind = kind;
  const std::string text = error.message();
  const std::size_t bytes = std::min(text.size(), sizeof out->message - 1);
  std::memcpy(out->message, text.data(), bytes);
  out->message[bytes] = '\0';
  return kind;
}

inline int report(const Result<void>& result, deft_error* out) {
  return result ? DEFT_OK : report(result.error(), out);
}

// 1, 0, or below 0: the convention of deft_test and deft_poll.
inline int report(const Result<bool>& result, deft_error* out) {
  return result ? static_cast<int>(*result) : -report(result.error(), out);
}

// Runs `body`, which returns a DEFT_E* number. An exception becomes an error.
template <typename Body>
int guarded(deft_error* error, Body body) {
  if (error != nullptr) *error = {};
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(Error{ErrorKind::kExhausted, "this process is out of memory", "", ""}, error);
  } catch (const std::exception& e) {
    return report(Error{ErrorKind::kInternal, e.what(), "", "libdeft"}, error);
  }
}

// Likewise, in a call that may wait.
template <typename Body>
int guarded(deft_session* session, deft_error* error, Body body) {
  return guarded(error, [&] {
    const WaitingCall call(session);
    return body();
  });
}

// Likewise, for what returns 1, 0, or below 0 for an error. `session`: null if it does not wait.
template <typename Body>
int answered(deft_session* session, deft_error* error, Body body) {
  int answer = 0;
  const int failed = guarded(session, error, [&] {
    answer = body();
    return int{DEFT_OK};
  });
  return failed == DEFT_OK ? answer : -failed;
}

// Runs `use`, which returns a Result, on a group that this worker has not released.
template <typename Use>
int with_group(const deft_group* group, deft_error* error, Use use) {
  using Outcome = decltype(use(*group->use()));
  const auto body = [&] {
    const auto used = group->use();
    if (used) return report(use(*used), error);
    const Error gone{ErrorKind::kInvalid, "the group of gradients was released", "use it before its release", ""};
    return report(Outcome(tl::unexpected(gone)), error);
  };
  if constexpr (std::is_same_v<Outcome, Result<bool>>)
    return answered(nullptr, error, body);
  else
    return guarded(error, body);
}

inline int missing(const char* what, deft_error* error) {
  return report(Error{ErrorKind::kInvalid, std::string(what) + " is NULL", "", ""}, error);
}

inline TimeUs deadline_in(std::uint64_t timeout_us) {
  constexpr std::uint64_t kLongest = std::uint64_t{1} << 50;  // 35 years
  return MonotonicClock::now() + static_cast<TimeUs>(std::clamp(timeout_us, std::uint64_t{1}, kLongest));
}

}  // namespace deft::client
