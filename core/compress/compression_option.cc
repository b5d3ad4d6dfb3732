#include "core/compress/compression_option.h"

#include <algorithm>
#include <array>

#include "core/base/policy_traits.h"

namespace deft::compress {

std::string compression_of(const Config& config) {
  const std::string& text = config.text("compression");
  if (!text.empty()) return text;
  const bool plans = find_policy(config.text("policy"))->delays_updates && config.text("plan").empty();
  return plans ? "auto/max=int8" : "none";
}

std::optional<std::vector<std::string>> ladder_of(std::string_view compression) {
  constexpr std::string_view kAuto = "auto", kMost = "auto/max=";
  constexpr std::array<std::string_view, 4> kRungs = {"bf16", "int8", "int4", "int2"};
  if (compression != kAuto && !compression.starts_with(kMost)) return std::nullopt;
  const std::string_view most = compression == kAuto ? "int8" : compression.substr(kMost.size());
  std::vector<std::string> names;
  if (most == "none") return names;
  const auto last = std::ranges::find(kRungs, most);
  if (last != kRungs.end()) names.assign(kRungs.begin(), last);
  names.emplace_back(most);
  return names;
}

}  // namespace deft::compress
