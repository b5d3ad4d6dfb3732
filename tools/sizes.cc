#include "tools/sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace deft::tools {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array kUnits = {Unit{"B", 1}, Unit{"KB", 1024.0}, Unit{"MB", 1048576.0}, Unit{"GB", 1073741824.0},
                               Unit{"TB", 1099511627776.0}};

}  // namespace

Result<std::uint64_t> parse_size(const std::string& flag, const std::string& text) {
  constexpr double kMost = 1024 * 1099511627776.0;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  std::string unit(read.ptr, end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.empty() || unit.back() != 'B') unit.push_back('B');  // "8G"
  const auto known = std::ranges::find(kUnits, unit, &Unit::name);
  const double bytes = known == kUnits.end() ? 0 : value * known->bytes;
  if (read.ec == std::errc{} && bytes >= 1 && bytes <= kMost) return static_cast<std::uint64_t>(bytes);
  return fail(ErrorKind::kInvalid, flag + " is '" + text + "'", "give a size: 8GB, 512MB");
}

std::string size_words(double bytes) {
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1000 * kUnits[unit].bytes) ++unit;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes / kUnits[unit].bytes,
                std::string(kUnits[unit].name).c_str());
  return text;
}

}  // namespace deft::tools
