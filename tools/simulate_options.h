// The command line of `deft simulate`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/plan/limits.h"

namespace deft::tools {

struct SimulateOptions {
  std::string profile_path;
  std::string policy = "all";
  std::vector<std::string> links;             // empty: all of the profile
  std::vector<std::string> priority_channel;  // links that have one
  std::string link_costs;                     // a file; empty: as the profile has them
  std::string bucketing;                      // empty: as the profile has it, but mgwfbp, whose decision it is, merges
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
  plan::Limits limits;  // of the knapsack policies
  std::uint32_t slots = plan::Limits{}.max_generations;
};

// The steps that are not measured.
inline std::uint64_t warmup_steps(const SimulateOptions& options) {
  return options.warmup ? options.warmup : options.steps / 4;
}

Result<SimulateOptions> parse_simulate_options(std::span<const std::string> arguments);
std::string simulate_usage();

}  // namespace deft::tools
