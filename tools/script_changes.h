// What only the training script can change: torch.compile, half precision, another batch. deft optimize --try runs the job once with such
// a change, measures its layers, and looks for settings for it.
//
//   auto job = measure_change("compile", command);               // the script asks deft.trying("compile")
//   print(change_words(as_is, {"compile", job->measured, search(job->measured)}))
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/optimize/search.h"
#include "core/replay/measured_job.h"

namespace deft::tools {

struct ScriptChange {
  std::string name;  // empty: the script as it is
  replay::MeasuredJob measured;
  optimize::Found found;  // the best settings for it, by replay
};

// kInvalid unless `name` is of letters, digits, "-" and "_", at most 64.
Result<void> check_change(const std::string& name);

// Runs `command` with DEFT_TRY=name. kInvalid if no worker on this machine asks for that name; also as TracedRuns::run(). Blocks.
Result<replay::MeasuredJob> measure_change(const std::string& name, const std::vector<std::string>& command);

// Two lines for people.
std::string change_words(const ScriptChange& as_is, const ScriptChange& changed);
nlohmann::json change_json(const ScriptChange& changed);

}  // namespace deft::tools
