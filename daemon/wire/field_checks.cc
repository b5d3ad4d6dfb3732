#include "daemon/wire/field_checks.h"

#include <algorithm>
#include <cmath>

namespace deft::daemon::wire {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the character with which `text` begins; 0: it is none. Follows table 3-7 of the Unicode standard.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if (!continues(text[i])) return 0;
  const unsigned char second = at(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second > 0x9F;
  const bool too_large = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || too_large ? 0 : bytes;
}

}  // namespace

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

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string readable(std::string_view text, std::size_t most_bytes) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::size_t taken = std::max<std::size_t>(bytes, 1);
    if (result.size() + taken > most_bytes) break;
    if (bytes == 0)
      result += '?';
    else
      result += text.substr(0, bytes);
    text.remove_prefix(taken);
  }
  return result;
}

}  // namespace deft::daemon::wire
