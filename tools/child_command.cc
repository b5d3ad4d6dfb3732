#include "tools/child_command.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>

#include "core/base/word_pointers.h"

namespace deft::tools {
namespace {

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

// While this object lives, the signals that end a program wait, so that the command ends before its files are removed. Ignored signals
// stay ignored.
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
                            const sigset_t& mask, const char* fix) {
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
              fix);
}

}  // namespace

Result<void> run_command(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables,
                         const ChildWords& words) {
  EndSignals signals;
  const auto child = start_command(command, variables, signals.before(), words.fix_missing);
  if (!child) return tl::unexpected(child.error());
  const int status = signals.await(*child);
  const std::string so = std::string(", ") + words.so;
  if (signals.was_ended()) return fail(ErrorKind::kUnavailable, "a signal has ended " + command.front() + so);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(ErrorKind::kUnavailable, command.front() + " failed" + so, words.fix_failed);
  return {};
}

}  // namespace deft::tools
