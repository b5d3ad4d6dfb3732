#include "daemon/base/settings.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "core/base/job_options.h"
#include "core/base/policy_traits.h"
#include "core/model/link_costs.h"

namespace deft::daemon {

std::map<std::string, std::string> JobSettings::agreed() const {
  return {{"policy", policy},
          {"bucketing", bucketing},
          {"bucket_bytes", std::to_string(bucket_bytes)},
          {"partition_bytes", std::to_string(partition_bytes)},
          {"credit_bytes", std::to_string(credit_bytes)},
          {"max_staleness_steps", std::to_string(max_staleness_steps)},
          {"max_merged_steps", std::to_string(max_merged_steps)},
          {"fresh_wait_percent", std::to_string(fresh_wait_percent)},
          {"max_late_percent", std::to_string(max_late_percent)},
          {"scale_merged_lr", scale_merged_lr ? "on" : "off"},
          {"link_reserve_percent", std::to_string(link_reserve_percent)},
          {"preserver", preserver ? "on" : "off"},
          {"preserver_epsilon", std::to_string(preserver_epsilon)},
          {"plan", plan ? model::to_text(*plan) : ""}};
}

TimeUs JobSettings::heartbeat_us() const { return std::clamp<TimeUs>(timeout_us / 12, 20'000, 1'000'000); }

namespace {

Result<std::optional<model::UpdateCycles>> plan_setting(const Config& config) {
  if (!config.is_set("plan")) return std::nullopt;
  if (!find_policy(config.text("policy"))->delays_updates)
    return fail(ErrorKind::kInvalid, "the option plan is for the policy knapsack, not for " + config.text("policy"),
                "set DEFT_POLICY=knapsack, or unset DEFT_PLAN");
  auto cycles = model::parse_cycles(config.text("plan"));
  if (!cycles) return tl::unexpected(cycles.error().in("option plan"));
  return *cycles;
}

}  // namespace

Result<JobSettings> job_settings(const Config& daemon, const std::string& worker_settings) {
  std::vector<std::string> flags;
  for (const auto name : kJobOptions) flags.push_back("--" + std::string(name) + "=" + daemon.text(name));
  std::istringstream lines(worker_settings);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::string name = line.substr(0, line.find('='));
    if (std::find(std::begin(kJobOptions), std::end(kJobOptions), name) == std::end(kJobOptions))
      return fail(ErrorKind::kInvalid, "'" + name + "' is no setting of a job");
    flags.push_back("--" + line);
  }
  auto config = Config::load(flags, {}, Audience::kAll);
  if (!config) return tl::unexpected(config.error().in("the job's settings"));
  auto plan = plan_setting(*config);
  if (!plan) return tl::unexpected(plan.error());
  JobSettings settings;
  if (daemon.is_set("link_costs")) {
    auto costs = model::read_link_costs(daemon.text("link_costs"));
    if (!costs) return tl::unexpected(costs.error().in("option link_costs"));
    settings.link_costs = *std::move(costs);
  }
  settings.plan = std::move(*plan);
  settings.policy = config->text("policy");
  settings.bucketing = config->text("bucketing");
  settings.links = config->text("links");
  settings.bucket_bytes = config->bytes("bucket_bytes");
  settings.partition_bytes = config->bytes("partition_bytes");
  settings.credit_bytes = config->bytes("credit_bytes");
  settings.max_staleness_steps = static_cast<std::uint32_t>(config->integer("max_staleness_steps"));
  settings.max_merged_steps = static_cast<std::uint32_t>(config->integer("max_merged_steps"));
  settings.max_late_percent = static_cast<std::uint32_t>(config->integer("max_late_percent"));
  settings.link_reserve_percent = static_cast<std::uint32_t>(config->integer("link_reserve_percent"));
  settings.fresh_wait_percent = static_cast<std::uint32_t>(config->integer("fresh_wait_percent"));
  settings.scale_merged_lr = config->text("scale_merged_lr") == "on";
  settings.preserver = config->text("preserver") != "off";
  settings.preserver_epsilon = config->number("preserver_epsilon");
  settings.timeout_us = config->seconds_us("timeout");
  settings.stall_timeout_us = config->seconds_us("stall_timeout");
  return settings;
}

}  // namespace deft::daemon
