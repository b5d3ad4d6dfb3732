// The exception boundary of a callback: whatever it throws becomes an Error, which the caller gives to the one job it concerns.
//
//   if (auto error = caught("the heartbeat", [&] { ... })) fail_job(*error);
//
// Our own code throws nothing; the standard library and the libraries that we use do: no memory, no thread, a bug.
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace deft::daemon {

// `what`: names the callback in the error. Nothing: the callback has returned.
template <typename Callback>
std::optional<Error> caught(const std::string& what, const Callback& callback) {
  try {
    callback();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return Error{
        ErrorKind::kExhausted, "the daemon is out of memory, at " + what, "give it more, or run fewer jobs", {}};
  } catch (const std::exception& thrown) {
    return Error{ErrorKind::kInternal, what + " failed: " + thrown.what(), "", {}};
  }
}

}  // namespace deft::daemon
