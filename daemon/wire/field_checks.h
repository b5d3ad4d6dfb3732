// Checks of the fields of a message that a peer wrote, and the name of a field for people.
//
//   Checks checks;
//   const Field launches{nullptr, "launch_order.launches", i};
//   to.link = checks.below(from.link(), links, {&launches, "link"}, "links");
//   if (auto error = checks.error()) return tl::unexpected(*error);   // "launch_order.launches[2].link: 9, and there are 2 links"
//
// Only the first error is kept. A value that fails its check is returned all the same, so a caller must not use it as an index
// before it has asked failed().
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace deft::daemon::wire {

// One step of the way to a field. Built on the stack; it makes no text while all is well.
struct Field {
  const Field* parent = nullptr;
  std::string_view name;
  std::int64_t index = -1;  // of a repeated field
  [[nodiscard]] std::string path() const;
};

class Checks {
 public:
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  void fail(const Field& field, const std::string& what, ErrorKind kind = ErrorKind::kViolation);

  // True if it holds; otherwise `what` is the error. `what` is made only then.
  template <std::invocable What>
  bool require(bool holds, const Field& field, const What& what) {
    if (!holds) fail(field, what());
    return holds;
  }
  bool require(bool holds, const Field& field, const char* what) {
    if (!holds) fail(field, what);
    return holds;
  }

  // value < count. `things` names the things that are counted, as "links".
  template <std::unsigned_integral Value>
  Value below(Value value, std::uint64_t count, const Field& field, const char* things) {
    if (value >= count) fail_below(value, count, field, things);
    return value;
  }
  template <std::unsigned_integral Value>
  Value at_most(Value value, std::uint64_t limit, const Field& field) {
    if (value > limit) fail_at_most(value, limit, field);
    return value;
  }
  double finite(double value, const Field& field, double least, double most);
  // Valid UTF-8, not empty, and at most so many bytes.
  std::string name(const std::string& value, const Field& field, std::size_t most_bytes);
  // The same, and it may be empty.
  std::string text(const std::string& value, const Field& field, std::size_t most_bytes);
  std::size_t size(std::size_t items, std::size_t least, std::size_t most, const Field& field);

 private:
  void fail_below(std::uint64_t value, std::uint64_t count, const Field& field, const char* things);
  void fail_at_most(std::uint64_t value, std::uint64_t limit, const Field& field);
  std::optional<Error> error_;
};

}  // namespace deft::daemon::wire
