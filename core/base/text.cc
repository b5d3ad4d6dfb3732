#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace deft {
namespace {

// The bytes of the character that begins `text`; 0: it is no UTF-8. RFC 3629 has the table.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0U; };
  const auto follows = [&](std::size_t i, unsigned least = 0x80, unsigned most = 0xbf) {
    return byte(i) >= least && byte(i) <= most;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef)
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

// True if the character is an ASCII control character, or one of C1 (U+0080 to U+009F). Some terminals obey those, too.
bool is_control(std::string_view character) {
  const auto first = static_cast<std::uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return character.size() == 2 && first == 0xc2 && static_cast<std::uint8_t>(character[1]) < 0xa0;
}

std::string visible(std::string_view character) {
  if (!is_control(character)) return std::string(character);
  if (character == "\n") return "\\n";
  if (character == "\r") return "\\r";
  if (character == "\t") return "\\t";
  std::array<char, 5> hex{};
  std::snprintf(hex.data(), hex.size(), "\\x%02x", static_cast<std::uint8_t>(character.back()));
  return hex.data();
}

// Levenshtein distance, for suggestions.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<std::uint8_t>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

Result<void> check_text(std::string_view text, std::size_t most_bytes, const std::string& field) {
  if (text.size() > most_bytes)
    return fail(ErrorKind::kInvalid,
                field + " has " + std::to_string(text.size()) + " bytes, more than " + std::to_string(most_bytes));
  if (!is_utf8(text)) return fail(ErrorKind::kInvalid, field + " is not valid UTF-8");
  if (has_control_characters(text)) return fail(ErrorKind::kInvalid, field + " holds control characters");
  return {};
}

Result<void> check_name(std::string_view text, std::size_t most_bytes, const std::string& field) {
  if (text.empty()) return fail(ErrorKind::kInvalid, field + " is empty");
  return check_text(text, most_bytes, field);
}

std::string escape_controls(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t taken = std::max<std::size_t>(character_bytes(text), 1);
    result += visible(text.substr(0, taken));
    text.remove_prefix(taken);
  }
  return result;
}

std::string readable(std::string_view text, std::size_t most_bytes) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string shown = bytes == 0 ? "?" : visible(text.substr(0, bytes));
    if (result.size() + shown.size() > most_bytes) break;
    result += shown;
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string_view closest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = word.size() / 4 + 2;  // nothing that is so far away is near
  for (const auto candidate : candidates) {
    const auto d = distance(word, candidate);
    if (d < best_distance) best = candidate, best_distance = d;
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates, std::string otherwise) {
  const std::string_view near = closest(word, candidates);
  return near.empty() ? std::move(otherwise) : "did you mean " + std::string(near) + "?";
}

}  // namespace deft
