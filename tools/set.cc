// deft set NAME=VALUE ... JOB: other settings for a running job, from its next step on. Run it on the node of rank 0.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "core/ipc/wire.h"
#include "core/sched/settings_change.h"
#include "tools/command.h"
#include "tools/daemon_request.h"

namespace deft::tools {

Result<int> run_set(Arguments arguments) {
  const DaemonArguments given = split_arguments(arguments);
  const auto is_setting = [](const std::string& word) { return word.find('=') != std::string::npos; };
  const auto jobs = std::ranges::count_if(given.words, std::not_fn(is_setting));
  if (!given.words.empty() && jobs == 0)
    return fail(ErrorKind::kInvalid, "the name of the job is missing",
                "say deft set " + given.words.front() + " JOB; deft status lists the jobs");
  if (given.words.size() < 2 || jobs != 1 || is_setting(given.words.back()))
    return fail(ErrorKind::kInvalid,
                "usage: deft set policy=NAME|partition_bytes=SIZE|credit_bytes=SIZE ... JOB [--socket PATH]",
                "deft check-build lists the policies, deft status the jobs");
  const std::string& job = given.words.back();
  const std::vector<std::string> settings(given.words.begin(), given.words.end() - 1);
  if (auto change = sched::parse_settings_change(settings); !change) return tl::unexpected(change.error());
  const auto config = load_config(given.flags);
  if (!config) return tl::unexpected(config.error());
  std::string lines, shown;
  for (const std::string& setting : settings) {
    lines += setting + "\n";
    shown += setting + " ";
  }
  const auto answer =
      ask_daemon(*config, ipc::encode(ipc::ChangeSettings{}, ipc::MessageKind::kChangeSettings, {job, lines}));
  if (!answer) return tl::unexpected(answer.error());
  std::printf("job %s: %s%s\n", job.c_str(), shown.c_str(), answer->c_str());
  return kExitOk;
}

}  // namespace deft::tools
