// Parses the command line of `deft simulate`.
//
//   auto options = parse_simulate_options(arguments);   // kInvalid names the wrong argument
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/plan/plan_limits.h"

namespace deft::tools {

struct SimulateOptions {
  std::string profile_path;
  std::string policy = "all";
  std::vector<std::string> links;             // empty: all links of the profile
  std::vector<std::string> priority_channel;  // the links that have a priority channel
  std::string link_costs;                     // a file; empty: the costs of the profile
  std::string bucketing;                      // empty: the buckets of the profile, which only mgwfbp merges
  std::uint64_t steps = 200;
  std::uint64_t warmup = 0;  // 0: a quarter of the steps
  std::string events_path;
  std::string svg_path;
  bool json = false;
  bool help = false;
  double contention = 0;
  std::uint64_t nodes = 1;
  double jitter = 0;
  double straggler = 1;
  std::uint64_t seed = 1;
  std::uint64_t partition_bytes = 4'000'000;  // ByteScheduler's defaults, in bytes of float32
  std::uint64_t credit_bytes = 16'000'000;
  std::string merge_groups = "2";
  plan::PlanLimits limits;  // for the knapsack policies
  std::uint32_t slots = plan::PlanLimits{}.max_generations;
};

// How many first steps are not measured.
inline std::uint64_t warmup_steps(const SimulateOptions& options) {
  return options.warmup ? options.warmup : options.steps / 4;
}

Result<SimulateOptions> parse_simulate_options(std::span<const std::string> arguments);
std::string simulate_usage();

}  // namespace deft::tools
