// The one way in which Deft says that something failed.
//
// What can fail returns Result<T>; an Error says what went wrong, where, and what to do about it. Use it so:
//
//   Result<int> open_socket(const std::string& path) {
//     if (path.empty()) return fail(ErrorKind::kInvalid, "the socket path is empty", "set DEFT_SOCKET");
//     ...
//   }
//   auto fd = open_socket(path);
//   if (!fd) return tl::unexpected(fd.error().in("attach to the daemon"));
//
// Broken invariants of our own code are not Results: they end the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace deft {

// The classes of errors, and who can do something about them.
enum class ErrorKind : std::uint8_t {
  kInvalid = 1,      // the caller or the user gave something wrong: correct it
  kMismatch = 2,     // two parties disagree (versions, tensors, world sizes): both are named
  kTimeout = 3,      // a deadline passed: what was waited for is named
  kLost = 4,         // a worker, daemon, node or link is gone: it is named
  kExhausted = 5,    // memory, descriptors or ports ran out
  kViolation = 6,    // a peer broke the protocol: it is dropped
  kUnavailable = 7,  // this cannot work here (no such device, not compiled in): the reason is named
  kInternal = 8,     // our own fault
};

// A short stable name of `kind` for logs and JSON, for instance "timeout".
constexpr std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid: return "invalid";
    case ErrorKind::kMismatch: return "mismatch";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kLost: return "lost";
    case ErrorKind::kExhausted: return "exhausted";
    case ErrorKind::kViolation: return "violation";
    case ErrorKind::kUnavailable: return "unavailable";
    case ErrorKind::kInternal: return "internal";
  }
  return "unknown";
}

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;   // what happened, with the values that matter
  std::string fix;    // what the user can do; may be empty
  std::string where;  // the activity during which it happened, outermost first; may be empty

  // The same error with `context` put in front of where it happened.
  [[nodiscard]] Error in(std::string_view context) const {
    Error e = *this;
    e.where = e.where.empty() ? std::string(context) : std::string(context) + ": " + e.where;
    return e;
  }

  // One line for people: "where: what (fix)".
  [[nodiscard]] std::string message() const {
    std::string text = where.empty() ? what : where + ": " + what;
    if (!fix.empty()) text += " (" + fix + ")";
    return text;
  }
};

template <typename T>
using Result = tl::expected<T, Error>;

// Makes the failing return value of any Result.
inline tl::unexpected<Error> fail(ErrorKind kind, std::string what, std::string fix = {}) {
  return tl::unexpected<Error>(Error{kind, std::move(what), std::move(fix), {}});
}

}  // namespace deft
