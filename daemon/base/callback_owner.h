// The exception boundary of the daemon. An exception of a callback (no memory, no thread, a bug) fails the session or the job that the
// callback belongs to. The daemon and all other jobs go on.
//
//   run_for(job, "a message of the leader", [&] { ... });   // an exception in here becomes job->callback_failed(error)
//
// Ownership is inherited: a timer, a poller, a watched descriptor and posted work belong to the owner for whom the code that made
// them ran (daemon/base/reactor.h). So only the few places where the owner changes call run_for: the server for its sessions and
// jobs, a session for its job. A thread of a link has no owner; it posts for the owner that its driver kept.
//
// Deft's own code throws nothing: what can fail returns a Result. The standard library and other libraries do throw. run_for and
// current_owner: any thread; callback_failed runs on the thread that called run_for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace deft::daemon {

// A session or a job: fails if a callback of it throws.
class CallbackOwner {
 public:
  virtual ~CallbackOwner() = default;
  // Called after the callback has ended. `error`: kExhausted for memory and threads, else kInternal; it names the callback.
  virtual void callback_failed(const Error& error) = 0;
};

using OwnerRef = std::weak_ptr<CallbackOwner>;  // empty: the daemon itself, whose exceptions are only logged

namespace detail {
inline thread_local const OwnerRef* current_owner = nullptr;
inline thread_local std::string_view newest_callback;                          // the callback that began last
void report_exception(const OwnerRef& owner, std::string_view what) noexcept;  // the exception that is being handled
}  // namespace detail

// The owner for whom the code on this thread runs. Empty outside of run_for.
inline OwnerRef current_owner() { return detail::current_owner != nullptr ? *detail::current_owner : OwnerRef(); }

// Names what runs from here on, for the measurement of the event loop: a literal.
inline void name_callback(std::string_view what) { detail::newest_callback = what; }
// The name of the callback that began last on this thread; then it has none until the next one begins.
inline std::string_view take_newest_callback() { return std::exchange(detail::newest_callback, {}); }

// Runs `body` now, for `owner`. Calls may be nested: the innermost owner gets the exception. `what` names the callback: a literal.
template <typename Body>
void run_for(const OwnerRef& owner, std::string_view what, const Body& body) {
  const OwnerRef* const before = std::exchange(detail::current_owner, &owner);
  detail::newest_callback = what;
  try {
    body();
  } catch (...) {
    detail::current_owner = before;
    detail::report_exception(owner, what);
  }
  detail::current_owner = before;
}

// Describes the exception that is being handled: kExhausted for memory and threads, else kInternal. `what`: the work that threw.
Error error_of_exception(const std::string& what);

// How many callbacks have thrown in this process.
std::uint64_t failed_callbacks();

}  // namespace deft::daemon
