// Feeds the configuration with flags and variables that libFuzzer makes up: each line of the input is one of either. What
// is accepted must have every option, with numbers inside their bounds.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const deft::Config& config) {
  for (const auto& spec : deft::option_table()) {
    const bool given = config.source(spec.name) != deft::ConfigSource::kDefault && config.is_set(spec.name);
    if (spec.type == deft::OptionType::kInteger && given) {
      require(static_cast<double>(config.integer(spec.name)) >= spec.minimum);
      require(static_cast<double>(config.integer(spec.name)) <= spec.maximum);
    }
    if (spec.type == deft::OptionType::kSeconds) require(config.seconds_us(spec.name) >= 0);
  }
  for (const auto& limit : deft::user_limit_table())
    require(static_cast<double>(config.user_limit(limit.name)) >= limit.minimum);
  require(!config.effective().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view left(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> flags, variables;
  while (!left.empty()) {
    const auto end = left.find('\n');
    const std::string line(left.substr(0, end));
    left = end == std::string_view::npos ? std::string_view{} : left.substr(end + 1);
    if (line.find("flag") != std::string::npos) continue;  // a flag file would read this machine's files
    (line.starts_with("--") ? flags : variables).push_back(line);
  }
  const auto config = deft::Config::load(flags, variables, deft::Audience::kAll);
  if (config)
    check(*config);
  else
    require(!config.error().what.empty());
  return 0;
}
