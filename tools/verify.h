// Runs a job with its own settings and with others, twice each, and compares: deft optimize --verify.
//
//   const auto verified = run_both(command, found.settings.options(found.traced));
//   if (verified->is_faster()) ...
//
// The order is A B B A, so that a machine that becomes slower or faster meanwhile does not decide, as in deft tune.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace deft::tools {

struct Verified {
  double before_us = 0, after_us = 0;  // the means of the median steps of two runs
  double noise_us = 0;                 // by which a run differs from that mean, at most

  [[nodiscard]] bool is_faster() const { return after_us + noise_us < before_us; }
};

// `command` starts the job and ends with it; DEFT_* variables give it the folder of its trace, and `options` in the second and third run.
// kUnavailable if a run fails. Blocks.
Result<Verified> run_both(const std::vector<std::string>& command, const std::map<std::string, std::string>& options);

}  // namespace deft::tools
