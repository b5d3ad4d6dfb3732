#include "tools/verify.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/replay/quantiles.h"
#include "tools/flag_file.h"
#include "tools/traced_job.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

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

// The job's output goes to the error output, so that the command's own output stays as it is.
Result<void> run(std::vector<std::string> command, const std::map<std::string, std::string>& variables) {
  std::vector<std::string> environment = environment_with(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, command.front().c_str(), &actions, nullptr, pointers_to(command).data(),
                                 pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return fail(ErrorKind::kInvalid, "cannot run " + command.front() + ": " + std::generic_category().message(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(ErrorKind::kUnavailable, command.front() + " failed, so nothing was compared");
  return {};
}

// The median step of one run.
Result<double> step_us(const std::vector<std::string>& command, std::map<std::string, std::string> variables,
                       const fs::path& folder) {
  std::error_code error;
  if (!fs::create_directory(folder, error)) return fail(ErrorKind::kUnavailable, "cannot make " + folder.string());
  variables["DEFT_TRACE"] = folder.string();
  if (auto ok = run(command, variables); !ok) return tl::unexpected(ok.error());
  const auto job = read_traced_job("deft optimize --verify", folder.string());
  if (!job) return tl::unexpected(job.error());
  return replay::median(job->measured.steps_us);
}

Verified verdict(double before_us, double before_again_us, double after_us, double after_again_us) {
  return {(before_us + before_again_us) / 2, (after_us + after_again_us) / 2,
          std::max(std::abs(before_us - before_again_us), std::abs(after_us - after_again_us)) / 2};
}

}  // namespace

Result<Verified> run_both(const std::vector<std::string>& command, const std::map<std::string, std::string>& options) {
  std::string name = (fs::temp_directory_path() / "deft-verify-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return fail(ErrorKind::kUnavailable, "cannot make a folder for the traces");
  std::map<std::string, std::string> variables;
  for (const auto& [option, value] : options) variables[as_variable(option)] = value;
  constexpr std::array kIsChanged = {false, true, true, false};
  std::array<double, kIsChanged.size()> steps_us{};
  std::optional<Error> error;
  for (std::size_t run = 0; run < kIsChanged.size() && !error; ++run) {
    const auto us = step_us(command, kIsChanged[run] ? variables : std::map<std::string, std::string>(),
                            fs::path(name) / std::to_string(run));
    if (us)
      steps_us[run] = *us;
    else
      error = us.error();
  }
  std::error_code ignored;
  fs::remove_all(name, ignored);
  if (error) return tl::unexpected(*error);
  return verdict(steps_us[0], steps_us[3], steps_us[1], steps_us[2]);
}

}  // namespace deft::tools
