// Errors of Deft. A function that can fail returns Result<T>: a value, or an Error. An Error says what went wrong, where, and
// what the user can do about it.
//
//   Result<int> open_socket(const std::string& path) {
//     if (path.empty()) return fail(ErrorKind::kInvalid, "the socket path is empty", "set DEFT_SOCKET");
//     ...
//   }
//   auto fd = open_socket(path);
//   if (!fd) return tl::unexpected(fd.error().in("attach to the daemon"));
//
// A broken invariant of our own code is no Result: it ends the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace deft {

// The classes of errors. The class says who can do something about an error.
enum class ErrorKind : std::uint8_t {
  kInvalid = 1,      // the caller or the user gave a wrong value and must correct it
  kMismatch = 2,     // two parties disagree (versions, tensors, world sizes); the error names both
  kTimeout = 3,      // a deadline passed; the error names the thing that did not come
  kLost = 4,         // a worker, daemon, node or link is gone; the error names it
  kExhausted = 5,    // memory, descriptors or ports ran out
  kViolation = 6,    // a peer broke the protocol and is dropped
  kUnavailable = 7,  // the feature cannot work here (no such device, not compiled in); the error names the reason
  kInternal = 8,     // Deft has a bug
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

// The error class with this number, which another process has sent; kInternal if no class has it.
constexpr ErrorKind error_kind_of(std::uint32_t number) {
  const bool is_known =
      number >= static_cast<unsigned>(ErrorKind::kInvalid) && number <= static_cast<unsigned>(ErrorKind::kInternal);
  return is_known ? static_cast<ErrorKind>(number) : ErrorKind::kInternal;
}

// An error on its way up. Each level may put its activity in front by in().
struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;   // the event, with the values that matter
  std::string fix;    // what the user can do; may be empty
  std::string where;  // the activities during which it happened, the outermost first; may be empty

  // The same error with `context` in front of `where`.
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

// Makes the return value of a function that fails, for any Result.
inline tl::unexpected<Error> fail(ErrorKind kind, std::string what, std::string fix = {}) {
  return tl::unexpected<Error>(Error{kind, std::move(what), std::move(fix), {}});
}

}  // namespace deft
