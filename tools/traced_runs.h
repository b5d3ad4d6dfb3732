// Runs the command that starts a job, with some variables changed, and measures the trace of it.
//
//   auto runs = TracedRuns::begin("deft optimize --verify");
//   const auto job = runs->run(command, {{"DEFT_POLICY", "fifo"}});    // blocks until the command ends
//
// The traces lie in a folder that goes with the object.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "tools/temporary_folder.h"
#include "tools/traced_job.h"

namespace deft::tools {

class TracedRuns {
 public:
  // `asker` is the command of deft that runs the job: lines about a faulty trace begin with it. kUnavailable: no folder can be made.
  static Result<TracedRuns> begin(std::string asker);

  // DEFT_TRACE is set beside `variables`. The job's output goes to the error output, so that the asker's own output stays as it is.
  // kUnavailable: the command failed, or a signal has ended it and this program. Also as read_traced_job().
  Result<TracedJob> run(const std::vector<std::string>& command, std::map<std::string, std::string> variables);
  // The folder of the newest run's traces.
  [[nodiscard]] std::filesystem::path newest() const { return folder_.path() / std::to_string(count_); }

 private:
  TracedRuns(std::string asker, TemporaryFolder folder) : asker_(std::move(asker)), folder_(std::move(folder)) {}

  std::string asker_;
  TemporaryFolder folder_;  // of all runs, one folder each
  int count_ = 0;
};

}  // namespace deft::tools
