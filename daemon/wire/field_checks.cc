#include "daemon/wire/field_checks.h"

#include <algorithm>
#include <cmath>

#include "core/base/text.h"

namespace deft::daemon::wire {

std::string Field::path() const {
  std::string text = parent == nullptr ? "" : parent->path() + ".";
  text += name;
  if (index >= 0) text += "[" + std::to_string(index) + "]";
  return text;
}

void Checks::fail(const Field& field, const std::string& what, ErrorKind kind) {
  if (!error_) error_ = Error{kind, field.path() + ": " + what, {}, {}};
}

void Checks::fail_below(std::uint64_t value, std::uint64_t count, const Field& field, const char* things) {
  fail(field, std::to_string(value) + ", and there are " + std::to_string(count) + " " + things);
}

void Checks::fail_at_most(std::uint64_t value, std::uint64_t limit, const Field& field) {
  fail(field, std::to_string(value) + ", and " + std::to_string(limit) + " is the most");
}

double Checks::finite(double value, const Field& field, double least, double most) {
  if (!std::isfinite(value) || value < least || value > most) fail(field, std::to_string(value) + " is out of range");
  return value;
}

std::string Checks::text(const std::string& value, const Field& field, std::size_t most_bytes) {
  if (value.size() > most_bytes) {
    fail(field, std::to_string(value.size()) + " bytes, and " + std::to_string(most_bytes) + " is the most");
    return {};
  }
  if (!is_utf8(value)) fail(field, "no valid UTF-8");
  return value;
}

std::string Checks::name(const std::string& value, const Field& field, std::size_t most_bytes) {
  if (value.empty()) fail(field, "empty");
  return text(value, field, most_bytes);
}

std::size_t Checks::size(std::size_t items, std::size_t least, std::size_t most, const Field& field) {
  if (items < least || items > most)
    fail(field, std::to_string(items) + " items, and there must be " + std::to_string(least) +
                    (least == most ? "" : " to " + std::to_string(most)));
  return items;
}

}  // namespace deft::daemon::wire
