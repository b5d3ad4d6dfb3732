// Passes that a user has written in Python for `deft optimize --pass FILE`: they propose settings, and the search replays them.
//
//   auto passes = UserPasses::begin({"passes.py"}, measured);
//   auto proposals = passes->ask(best, step_us, seconds_left);     // runs Python: plugins/python/deft/ask_passes.py
//
// What a pass is told and what it may propose stands in plugins/python/deft/passes.py.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optimize/search.h"
#include "core/replay/measured_job.h"
#include "tools/pass_settings.h"
#include "tools/temporary_folder.h"

namespace deft::tools {

class UserPasses {
 public:
  // kUnavailable: no folder for the questions can be made, or the Python package of Deft is not there.
  // `is_running`: only what can change in a running job is a setting.
  static Result<UserPasses> begin(std::vector<std::string> files, const replay::MeasuredJob& measured, bool is_running);

  // The proposals of all passes. kInvalid, naming the pass, if one fails, takes longer than `seconds`, or proposes what the job cannot have.
  // kUnavailable: Python cannot be run, or a signal has ended it. Blocks.
  [[nodiscard]] Result<std::vector<optimize::Proposal>> ask(const optimize::Settings& best, double step_us,
                                                            double seconds) const;

 private:
  UserPasses(std::vector<std::string> files, nlohmann::json job, PassSettings words, TemporaryFolder folder)
      : files_(std::move(files)), job_(std::move(job)), words_(std::move(words)), folder_(std::move(folder)) {}

  std::vector<std::string> files_;
  nlohmann::json job_;
  PassSettings words_;
  TemporaryFolder folder_;  // of the questions and the answers
};

}  // namespace deft::tools
