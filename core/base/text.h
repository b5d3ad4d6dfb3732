// Checks texts that another process wrote, before they reach a log line, a JSON document or a file.
//
//   if (auto ok = check_name(text, 255, "job"); !ok) return ok;   // "job has 300 bytes, more than 255"
//
// All functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace deft {

// True if all of `text` is well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// True if `text` holds a byte below 0x20 or 0x7f, which would break lines or move a terminal's cursor.
bool has_control_characters(std::string_view text);

// kInvalid unless `text` has 1 to `most_bytes` bytes of UTF-8 without control characters. The error names `field`; it
// shows nothing of the text.
Result<void> check_name(std::string_view text, std::size_t most_bytes, const std::string& field);

// Checks what check_name checks, but the text may be empty.
Result<void> check_text(std::string_view text, std::size_t most_bytes, const std::string& field);

// Makes control characters visible, so that a text can neither begin a line nor command a terminal: \n, \x1b. Other bytes stay.
std::string escape_controls(std::string_view text);

// Makes `text` readable for people: control characters become visible, each byte that is no UTF-8 becomes '?', and the text is cut after
// `most_bytes`.
std::string readable(std::string_view text, std::size_t most_bytes);

// ASCII letters become lower case.
std::string lower(std::string_view text);

// The items, with `separator` between each two: joined(nics, ", ", &Nic::name). `text_of` gives the text of an item; without it the
// items are texts. Empty texts at the beginning leave no separator.
template <typename Items, typename TextOf = std::identity>
std::string joined(const Items& items, std::string_view separator, TextOf text_of = {}) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += separator;
    text += std::invoke(text_of, item);
  }
  return text;
}

// The text without the blanks at both ends.
std::string_view trimmed(std::string_view text);

// The candidate that `word` is most likely a misspelling of; empty if none is near.
std::string_view closest(std::string_view word, std::span<const std::string_view> candidates);

// For an error's `fix`: "did you mean X?", or `otherwise` if no candidate is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string otherwise = {});

// FNV-1a: the same on all nodes, whatever their library. `hash`: the hash of the text before it.
constexpr std::uint64_t stable_hash(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace deft
