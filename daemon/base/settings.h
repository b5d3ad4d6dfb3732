// A job's settings: the daemon's configuration, in which the options of the job's workers win.
//
//   auto settings = job_settings(daemon_config, "policy=knapsack\ntimeout=10s\n");
//   settings->options.bytes("credit_bytes");
//
// An option that one place reads is read from `options` there. An option that many places read, or that has to be parsed, is a member.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/compress/registry.h"
#include "core/model/buckets.h"
#include "core/model/update_schedule.h"

namespace deft::daemon {

struct JobSettings {
  Config options;
  std::string policy;  // in the table of policy_traits.h
  std::string links;
  std::string compression;  // of the option; if that is empty, the policy's own
  // The first is null: gradients travel as they are. If a plan does not choose among them, the last one encodes all.
  std::vector<std::shared_ptr<const compress::Codec>> codecs = {nullptr};
  bool chooses_codecs = false;
  std::optional<model::UpdateCycles> plan;   // pinned by the user
  std::vector<model::LinkModel> link_costs;  // known before anything is measured
  TimeUs timeout_us = 0, stall_timeout_us = 0;

  // What all nodes of a job must agree on: the value of each option of Scope::kAgreed, by name.
  [[nodiscard]] std::map<std::string, std::string> agreed() const;

  // What travels over links.
  [[nodiscard]] bool encrypts() const { return options.text("encrypt_gradients") == "on"; }

  // How long a worker may owe something before it is reported.
  [[nodiscard]] TimeUs stall_warning_us() const { return timeout_us / 3; }
  // The time between two heartbeats, and between two checks for stalls.
  [[nodiscard]] TimeUs heartbeat_us() const;
  // A node without a sign of life for this long is lost.
  [[nodiscard]] TimeUs silence_us() const { return timeout_us / 2; }
};

// `worker_settings`: `name=value` lines from HELLO, of options whose scope is a job. Anything else, and a bad value, is an
// error (kInvalid) that names it.
Result<JobSettings> job_settings(const Config& daemon, const std::string& worker_settings);

// The codec that a user names for gradients. kInvalid if no codec has this name or these parameters, or if the codec has a momentum of
// its own.
Result<std::shared_ptr<const compress::Codec>> gradient_codec(std::string_view text);

}  // namespace deft::daemon
