// Runs a job with its own settings and with others, and compares: deft optimize --verify.
//
//   const auto verified = run_both(command, found.settings.options(found.traced));
//   verified->after_us < verified->before_us
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace deft::tools {

struct Verified {
  double before_us = 0, after_us = 0;  // the median steps of both runs
};

// `command` starts the job and ends with it; DEFT_* variables give it the folder of its trace, and `options` in the second run.
// kUnavailable if a run fails. Blocks.
Result<Verified> run_both(const std::vector<std::string>& command, const std::map<std::string, std::string>& options);

}  // namespace deft::tools
