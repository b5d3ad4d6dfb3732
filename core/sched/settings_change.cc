#include "core/sched/settings_change.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/base/config.h"
#include "core/base/text.h"

namespace deft::sched {
namespace {

constexpr std::string_view kPolicy = "policy", kPartition = "partition_bytes", kCredit = "credit_bytes";
constexpr std::array kNames = {kPolicy, kPartition, kCredit};

std::string listed_names() { return joined(kNames, ", "); }

Result<std::string> name_in(const std::string& word) {
  const auto equals = word.find('=');
  std::string name = word.substr(0, equals);
  if (std::ranges::find(kNames, name) == kNames.end())
    return fail(ErrorKind::kInvalid, "a running job has no setting '" + name + "' that can change",
                "set one of " + listed_names() + "; for other options start the job anew");
  if (equals == std::string::npos || equals + 1 == word.size())
    return fail(ErrorKind::kInvalid, "the setting " + name + " has no value", "give " + name + "=VALUE");
  return name;
}

}  // namespace

SettingsChange SettingsChange::after(const SettingsChange& earlier) const {
  return {.policy = policy ? policy : earlier.policy,
          .partition_bytes = partition_bytes ? partition_bytes : earlier.partition_bytes,
          .credit_bytes = credit_bytes ? credit_bytes : earlier.credit_bytes};
}

LaunchSizes SettingsChange::sizes_after(LaunchSizes earlier) const {
  return {partition_bytes.value_or(earlier.partition_bytes), credit_bytes.value_or(earlier.credit_bytes)};
}

std::map<std::string, std::string> SettingsChange::options() const {
  std::map<std::string, std::string> options;
  if (policy) options.emplace(kPolicy, *policy);
  if (partition_bytes) options.emplace(kPartition, std::to_string(*partition_bytes));
  if (credit_bytes) options.emplace(kCredit, std::to_string(*credit_bytes));
  return options;
}

Result<SettingsChange> parse_settings_change(std::span<const std::string> words) {
  std::vector<std::string> names, flags;
  for (const std::string& word : words) {
    auto name = name_in(word);
    if (!name) return tl::unexpected(name.error());
    if (std::ranges::find(names, *name) != names.end())
      return fail(ErrorKind::kInvalid, "the setting " + *name + " is given twice", "give it once");
    names.push_back(*std::move(name));
    flags.push_back("--" + word);
  }
  if (names.empty()) return fail(ErrorKind::kInvalid, "no setting is given", "give one or more of " + listed_names());
  const auto config = Config::load(flags, {}, Audience::kAll);
  if (!config) {
    Error error = config.error();
    if (error.what.starts_with("--")) error.what.erase(0, 2);  // these are no flags
    return tl::unexpected(std::move(error));
  }
  const auto has = [&](std::string_view name) { return config->source(name) == ConfigSource::kFlag; };
  SettingsChange change;
  if (has(kPolicy)) change.policy = config->text(kPolicy);
  if (has(kPartition)) change.partition_bytes = config->bytes(kPartition);
  if (has(kCredit)) change.credit_bytes = config->bytes(kCredit);
  return change;
}

}  // namespace deft::sched
