// The settings that a user may change in a running job: `deft set`, and `deft tune`.
//
//   const auto change = parse_settings_change({{"policy=p3", "credit_bytes=2MB"}});   // names and units of the option table
//   scheduler->change_settings(*change);                                              // from the next step on
//
// Only the leader's scheduler uses these options once a job runs: each launch that it orders names its bytes. So all nodes follow
// a change alike, and they need not hear of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "core/base/status.h"

namespace deft::sched {

// Sizes that a policy sends by.
struct LaunchSizes {
  std::uint64_t partition_bytes = 1 << 20;
  std::uint64_t credit_bytes = 4 << 20;

  bool operator==(const LaunchSizes&) const = default;
};

// A setting that is empty stays as it is.
struct SettingsChange {
  std::optional<std::string> policy = {};
  std::optional<std::uint64_t> partition_bytes = {};
  std::optional<std::uint64_t> credit_bytes = {};

  // This change after an earlier one.
  [[nodiscard]] SettingsChange after(const SettingsChange& earlier) const;
  [[nodiscard]] LaunchSizes sizes_after(LaunchSizes earlier) const;
  // The values by the names of the options.
  [[nodiscard]] std::map<std::string, std::string> options() const;
};

// `words`: NAME=VALUE each. kInvalid for another option, a bad value, a name that comes twice, and no word at all.
Result<SettingsChange> parse_settings_change(std::span<const std::string> words);

}  // namespace deft::sched
