#include "tools/durations.h"

#include <array>
#include <charconv>
#include <string_view>

namespace deft::tools {

Result<TimeUs> parse_duration(const std::string& flag, const std::string& text) {
  struct Unit {
    std::string_view name;
    double us;
  };
  constexpr std::array kUnits = {Unit{"", 1e6},   Unit{"s", 1e6},    Unit{"ms", 1e3},
                                 Unit{"m", 60e6}, Unit{"min", 60e6}, Unit{"h", 3600e6}};
  constexpr double kDayUs = 86'400e6;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  const std::string_view unit(read.ptr, end);
  for (const Unit& known : kUnits)
    if (read.ec == std::errc{} && unit == known.name && value >= 0 && value * known.us <= kDayUs)
      return static_cast<TimeUs>(value * known.us);
  return fail(ErrorKind::kInvalid, flag + " is '" + text + "'", "give a time of up to a day: 60s, 500ms, 2m");
}

}  // namespace deft::tools
