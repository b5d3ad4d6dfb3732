// Looks for settings with which a traced job would be faster, by replaying it with other ones.
//
//   const auto found = search(*measured, {.policies = exact_policies()}, [&] { return clock.now_us() > until_us; });
//   if (found->worth_it()) write(found->settings);      // policy, bucketing, sizes: options of Deft
//
// Each policy is first replayed with the traced sizes and with a coarse grid of others. From the best of all these the search climbs: it
// changes one size or two at a time, up and down a ladder of powers of two, as long as steps get shorter. Replay is deterministic, so the same trace gives the same settings, unless
// time runs out. What replay gets wrong of the traced job itself is the error of the promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/replay/measured_job.h"

namespace deft::optimize {

struct Settings {
  std::string policy;
  std::uint64_t bucket_bytes = 0;  // of equal buckets; 0: the buckets of the trace
  std::uint64_t partition_bytes = 0;
  std::uint64_t credit_bytes = 0;
  auto operator<=>(const Settings&) const = default;

  // The options that differ from `traced`, with their values.
  [[nodiscard]] std::map<std::string, std::string> options(const Settings& traced) const;
};

struct Limits {
  std::vector<std::string> policies;  // that may be chosen, beside the traced one
  std::size_t climbed = 6;            // settings of the grid from which it climbs
  bool keeps_buckets = false;         // only what can change in a running job
};

struct Found {
  Settings traced, settings;
  double traced_us = 0;  // a step, both by replay
  double step_us = 0;
  double error = 0;  // of the replay of the traced job: a share
  std::size_t replays = 0;

  // Whether the gain is above what replay errs by.
  [[nodiscard]] bool worth_it() const;
};

// All policies whose updates are those of plain data-parallel training, but `auto`, which chooses among them itself.
std::vector<std::string> exact_policies();

// kInvalid if the traced job cannot be replayed.
Result<Found> search(const replay::MeasuredJob& measured, const Limits& limits,
                     const std::function<bool()>& out_of_time);

// The step time of the job with these settings; 0 if it cannot run with them.
double replayed_us(const replay::MeasuredJob& measured, const Settings& settings);

}  // namespace deft::optimize
