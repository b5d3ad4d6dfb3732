#include "tools/traced_runs.h"

#include <signal.h>
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

// While it lives, the signals that end a program wait: first the command ends, and then the traces go. Those that are ignored stay so.
class EndSignals {
 public:
  EndSignals() {
    ::sigemptyset(&waiting_);
    ::sigaddset(&waiting_, SIGCHLD);
    for (const int number : {SIGINT, SIGTERM, SIGHUP})
      if (struct ::sigaction now{}; ::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN)
        ::sigaddset(&waiting_, number);
    ::sigprocmask(SIG_BLOCK, &waiting_, &before_);
  }
  ~EndSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  // The child's status when it has ended. A terminal gives Ctrl-C to the child, too; of other signals only this program hears.
  [[nodiscard]] int await(pid_t child) {
    int status = 0, number = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      ::sigwait(&waiting_, &number);
      was_ended_ = was_ended_ || number != SIGCHLD;
      if (number == SIGTERM || number == SIGHUP) ::kill(child, number);
    }
    return status;
  }
  [[nodiscard]] bool was_ended() const { return was_ended_; }

 private:
  sigset_t waiting_{}, before_{};
  bool was_ended_ = false;
};

// The child has the signal mask that this program had.
Result<pid_t> start_command(std::vector<std::string> command, const std::map<std::string, std::string>& variables,
                            const sigset_t& mask) {
  std::vector<std::string> environment = environment_with(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigmask(&attributes, &mask);
  pid_t child = 0;
  const int error = posix_spawnp(&child, command.front().c_str(), &actions, &attributes, pointers_to(command).data(),
                                 pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return child;
  return fail(ErrorKind::kInvalid, "cannot run " + command.front() + ": " + std::generic_category().message(error),
              "give the command that starts the job");
}

Result<void> run_command(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables) {
  EndSignals signals;
  const auto child = start_command(command, variables, signals.before());
  if (!child) return tl::unexpected(child.error());
  const int status = signals.await(*child);
  if (signals.was_ended())
    return fail(ErrorKind::kUnavailable, "a signal has ended " + command.front() + ", so nothing was compared");
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
  if (auto ok = run_command(command, variables); !ok) return tl::unexpected(ok.error());
  return read_traced_job(asker_, newest().string());
}

}  // namespace deft::tools
