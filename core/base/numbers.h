// Numbers without units, read from texts and written as texts. quantities.h has numbers with units.
//
//   parse_whole<std::uint16_t>("29610")   // nothing for "", "29610x", " 1", "-1" and "70000"
//   number_text(0.1)                      // "0.1"
//
// Pure.
#pragma once

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace deft {

// The number that all of `text` is. Nothing: it is none, or no T holds it. Infinities and NaN are numbers.
template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// With six digits at most.
inline std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace deft
