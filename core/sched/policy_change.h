// A change of the settings of a running job: the choice and its reason. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/policy_reason.h"
#include "core/sched/settings_change.h"

namespace deft::sched {

// A policy that can be in force for some steps of a job.
struct PolicyChoice {
  std::string policy = "fifo";
  std::uint64_t fused_bytes = 0;          // fifo: neighbours go as one transfer, up to so many bytes
  std::optional<LaunchSizes> sizes = {};  // empty: the job's own

  bool operator==(const PolicyChoice&) const = default;
};

// "bytescheduler", "fifo (25 MB)", or "bytescheduler (parts 256 KB, credit 1024 KB)".
inline std::string to_text(const PolicyChoice& choice) {
  if (choice.sizes)
    return choice.policy + " (parts " + std::to_string(choice.sizes->partition_bytes >> 10) + " KB, credit " +
           std::to_string(choice.sizes->credit_bytes >> 10) + " KB)";
  if (choice.fused_bytes == 0) return choice.policy;
  return choice.policy + " (" + std::to_string(choice.fused_bytes >> 20) + " MB)";
}

// The simulator's forecast of a choice.
struct PolicyForecast {
  PolicyChoice choice;
  double step_us = 0;
  double launches_per_step = 0;
};

// From `step` on another policy or other sizes are in force, or the policy in force was confirmed.
struct PolicyChange {
  std::uint64_t step = 0;
  PolicyChoice choice;
  LaunchSizes sizes = {};
  std::string reason;
  model::PolicyReason why = model::PolicyReason::kBegan;
  std::vector<PolicyForecast> forecasts = {};  // the best first; empty: nothing was simulated
  std::optional<double> before_us = {};        // the measured time of a step under the policy before this one
  std::optional<double> after_us = {};         // and under the policy that was tried
};

}  // namespace deft::sched
