#include "core/base/quantities.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <system_error>

#include "core/base/text.h"

namespace deft {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr double kKb = 1024, kMb = kKb * kKb, kGb = kMb * kKb, kTb = kGb * kKb;
constexpr Unit kByteUnits[] = {{"b", 1},    {"k", kKb},   {"kb", kKb}, {"kib", kKb}, {"m", kMb},
                               {"mb", kMb}, {"mib", kMb}, {"g", kGb},  {"gb", kGb},  {"gib", kGb},
                               {"t", kTb},  {"tb", kTb},  {"tib", kTb}};
constexpr Unit kSecondUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}};
constexpr Unit kShownUnits[] = {{"B", 1}, {"KB", kKb}, {"MB", kMb}, {"GB", kGb}, {"TB", kTb}};

std::optional<double> parse(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  const std::string suffix = lower(trimmed({end, static_cast<std::size_t>(text.data() + text.size() - end)}));
  if (suffix.empty()) return value;
  for (const Unit& unit : units)
    if (unit.suffix == suffix) return value * unit.factor;
  return std::nullopt;
}

tl::unexpected<Error> refusal(const std::string& flag, std::string_view text, const char* mend) {
  return fail(ErrorKind::kInvalid, flag + " is '" + std::string(text) + "'", mend);
}

}  // namespace

std::optional<double> parse_number(std::string_view text) { return parse(text, {}); }
std::optional<double> parse_bytes(std::string_view text) { return parse(text, kByteUnits); }
std::optional<double> parse_seconds(std::string_view text) { return parse(text, kSecondUnits); }

Result<std::uint64_t> parse_size(const std::string& flag, std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes < 1 || *bytes > 1024 * kTb) return refusal(flag, text, "give a size: 8GB, 512MB");
  return static_cast<std::uint64_t>(*bytes);
}

Result<TimeUs> parse_duration(const std::string& flag, std::string_view text) {
  constexpr double kDayS = 86'400;
  const auto seconds = parse_seconds(text);
  if (!seconds || *seconds < 0 || *seconds > kDayS)
    return refusal(flag, text, "give a time of up to a day: 60s, 500ms, 2m");
  return static_cast<TimeUs>(std::llround(*seconds * 1e6));
}

std::string size_words(double bytes) {
  std::size_t unit = 0;
  while (unit + 1 < std::size(kShownUnits) && bytes >= 1000 * kShownUnits[unit].factor) ++unit;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes / kShownUnits[unit].factor,
                kShownUnits[unit].suffix.data());
  return text;
}

}  // namespace deft
