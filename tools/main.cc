// deft: the command line. Each command is a function of command.h.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/text.h"
#include "tools/command.h"
#include "tools/simulate.h"
#include "tools/tune.h"

namespace deft::tools {
namespace {

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view summary;
  Result<int> (*run)(Arguments);
  bool own_help = false;
};

constexpr std::array kCommands = {
    Command{"status", "[--json | --explain [JOB]]",
            "what this node's daemon does: jobs, workers, links; or why a job is slow (--wait 10s for it)", run_status},
    Command{"set", "NAME=VALUE ... JOB", "other settings for a running job; on the node of rank 0", run_set},
    Command{"drain", "[--no-wait | --undo]", "no new jobs on this node; waits until the running ones end", run_drain},
    Command{"doctor", "[--json] [any option]", "checks this machine and says what to mend", run_doctor},
    Command{"probe", "[--json] [--output FILE]", "latency and throughput of every link between all nodes", run_probe,
            true},
    Command{"check-build", "[--json]", "what this build of Deft can do", run_check_build},
    Command{"simulate", "PROFILE.json ...", "what each policy makes of a profile, in virtual time", run_simulate, true},
    Command{"trace", "merge|dump|start|stop ...", "traces of a job: for a viewer, and from a running job", run_trace,
            true},
    Command{"replay", "DIR [WHAT IF ...]", "the step time of a traced job, and what would change it", run_replay, true},
    Command{"explain", "DIR | --live [JOB]", "why a traced job is as slow as it is, and what mending it would win",
            run_explain, true},
    Command{"optimize", "DIR [--budget 60s]", "settings with which a traced job would be faster", run_optimize, true},
    Command{"tune", "COMMAND ... | --job JOB", "tries part sizes and credits on a job while it trains", run_tune, true},
    Command{"report", "DIR [-o FILE.html]", "a page about a traced job, for a browser", run_report, true},
    Command{"options", "[--markdown|--json]", "every option: flag, variable, default, meaning", run_options},
    Command{"keygen", "", "makes a key that the daemons of a job share (option secret_file)", run_keygen},
};

void print_usage(std::FILE* out) {
  std::fputs("usage: deft COMMAND [ARGUMENTS]\n\n", out);
  for (const auto& command : kCommands)
    std::fprintf(out, "  %-12.*s %-26.*s %.*s\n", static_cast<int>(command.name.size()), command.name.data(),
                 static_cast<int>(command.arguments.size()), command.arguments.data(),
                 static_cast<int>(command.summary.size()), command.summary.data());
  std::fputs("\ndeft --version, deft --help. Exit status: 0 well, 1 failed, 2 wrong usage.\n", out);
}

int report(std::string_view command, const Error& error) {
  std::fprintf(stderr, "deft %.*s: %s\n", static_cast<int>(command.size()), command.data(), error.message().c_str());
  return error.kind == ErrorKind::kInvalid ? kExitUsage : kExitFailed;
}

int unknown_command(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  const std::string fix = did_you_mean(name, names, "see deft --help");
  std::fprintf(stderr, "deft: unknown command '%s' (%s)\n", name.c_str(), fix.c_str());
  return kExitUsage;
}

Result<int> run_command(const Command& command, Arguments arguments) {
  try {
    return command.run(arguments);
  } catch (const std::exception& error) {  // of the standard library: memory, folders
    return fail(ErrorKind::kUnavailable, error.what());
  }
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_usage(stderr);
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  if (name == "--version") {
    std::puts("deft " DEFT_VERSION);
    return kExitOk;
  }
  const auto* command =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return c.name == name; });
  const bool known = command != kCommands.end();
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool help = is_help(name) || name == "help" ||
                    (known && !command->own_help && std::any_of(arguments.begin() + 1, arguments.end(), is_help));
  if (help) {
    print_usage(stdout);
    return kExitOk;
  }
  if (!known) return unknown_command(name);
  const auto status = run_command(*command, Arguments(arguments).subspan(1));
  return status ? *status : report(name, status.error());
}

// The output may go to a file on a full disk: who redirects it must hear of that.
int with_output_written(int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  const std::string why = errno == 0 ? "" : ": " + std::generic_category().message(errno);
  std::fprintf(stderr, "deft: cannot write the output%s\n", why.c_str());
  return status == kExitOk ? kExitFailed : status;
}

}  // namespace
}  // namespace deft::tools

int main(int argc, char** argv) {
  return deft::tools::with_output_written(deft::tools::run(std::vector<std::string>(argv + 1, argv + argc)));
}
