#include "tools/traced_runs.h"

#include <system_error>

#include "tools/child_command.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOtherFolder = "let TMPDIR name a folder with room that this user may write";
constexpr ChildWords kOfTheJob{.so = "so nothing was compared",
                               .fix_missing = "give the command that starts the job",
                               .fix_failed = "its own output says why: run it without deft first"};

}  // namespace

Result<TracedRuns> TracedRuns::begin(std::string asker) {
  auto folder = TemporaryFolder::make("deft-runs", "traces");
  if (!folder) return tl::unexpected(folder.error());
  return TracedRuns(std::move(asker), *std::move(folder));
}

Result<TracedJob> TracedRuns::run(const std::vector<std::string>& command,
                                  std::map<std::string, std::string> variables) {
  ++count_;
  std::error_code error;
  if (!fs::create_directory(newest(), error))
    return fail(ErrorKind::kUnavailable,
                "cannot make the folder " + newest().string() + " for a trace: " + error.message(), kOtherFolder);
  variables["DEFT_TRACE"] = newest().string();
  if (auto ok = run_command(command, variables, kOfTheJob); !ok) return tl::unexpected(ok.error());
  return read_traced_job(asker_, newest().string());
}

}  // namespace deft::tools
