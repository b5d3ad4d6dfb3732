#include "tools/traced_runs.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOtherFolder = "let TMPDIR name a folder with room that this user may write";

// This process's environment with some variables changed.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changed) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string variable = *at;
    if (!changed.contains(variable.substr(0, variable.find('=')))) variables.push_back(variable);
  }
  for (const auto& [name, value] : changed) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Result<void> run_command(std::vector<std::string> command, const std::map<std::string, std::string>& variables) {
  std::vector<std::string> environment = environment_with(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, command.front().c_str(), &actions, nullptr, pointers_to(command).data(),
                                 pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return fail(ErrorKind::kInvalid, "cannot run " + command.front() + ": " + std::generic_category().message(error),
                "give the command that starts the job");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(ErrorKind::kUnavailable, command.front() + " failed, so nothing was compared",
                "its own output says why: run it without deft first");
  return {};
}

}  // namespace

Result<TracedRuns> TracedRuns::begin(std::string asker) {
  std::string name = (fs::temp_directory_path() / "deft-runs-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    const std::string reason = std::generic_category().message(errno);
    return fail(ErrorKind::kUnavailable,
                "cannot make a folder for traces in " + fs::temp_directory_path().string() + ": " + reason,
                kOtherFolder);
  }
  return TracedRuns(std::move(asker), name);
}

TracedRuns::~TracedRuns() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Result<TracedJob> TracedRuns::run(std::vector<std::string> command, std::map<std::string, std::string> variables) {
  ++count_;
  std::error_code error;
  if (!fs::create_directory(newest(), error))
    return fail(ErrorKind::kUnavailable,
                "cannot make the folder " + newest().string() + " for a trace: " + error.message(), kOtherFolder);
  variables["DEFT_TRACE"] = newest().string();
  if (auto ok = run_command(std::move(command), variables); !ok) return tl::unexpected(ok.error());
  return read_traced_job(asker_, newest().string());
}

}  // namespace deft::tools
