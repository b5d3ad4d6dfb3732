// A job's settings: the daemon's configuration, with what the workers set for themselves on top.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/model/buckets.h"
#include "core/model/update_schedule.h"

namespace deft::daemon {

struct JobSettings {
  std::string policy, bucketing, links;
  std::uint32_t max_staleness_steps = 0, max_merged_steps = 1, fresh_wait_percent = 0, max_late_percent = 100;
  std::uint32_t link_reserve_percent = 0;
  bool scale_merged_lr = false;
  bool preserver = true;
  double preserver_epsilon = 0.01;
  std::optional<model::UpdateCycles> plan;   // pinned
  std::vector<model::LinkModel> link_costs;  // known before anything is measured
  std::uint64_t bucket_bytes = 0, partition_bytes = 0, credit_bytes = 0;
  TimeUs timeout_us = 0, stall_timeout_us = 0;

  // What all nodes of a job must agree on, by option name.
  [[nodiscard]] std::map<std::string, std::string> agreed() const;

  // How long a worker may owe something before it is reported.
  [[nodiscard]] TimeUs stall_warning_us() const { return timeout_us / 3; }
  // Between heartbeats, and between looks at what is late.
  [[nodiscard]] TimeUs heartbeat_us() const;
  // Without a sign of life for this long, a node is lost.
  [[nodiscard]] TimeUs silence_us() const { return timeout_us / 2; }
};

// `worker_settings`: `name=value` lines from HELLO. An unknown name or a bad value is an error that names it.
Result<JobSettings> job_settings(const Config& daemon, const std::string& worker_settings);

}  // namespace deft::daemon
