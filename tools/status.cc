#include <algorithm>
#include <cstdio>

#include "core/base/quantities.h"
#include "tools/command.h"
#include "tools/daemon_request.h"
#include "tools/daemon_status.h"

namespace deft::tools {
Result<int> run_status(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  if (take_flag(arguments, "--explain")) {
    arguments.emplace_back("--live");
    return run_explain(arguments);
  }
  const bool as_json = take_flag(arguments, "--json");
  const auto wait = take_value(arguments, "--wait");
  auto config = load_config(arguments);
  if (!config) return tl::unexpected(config.error());
  const auto patience_us = wait ? parse_duration("--wait", *wait)
                                : Result<TimeUs>(std::min<TimeUs>(config->seconds_us("timeout"), 10'000'000));
  if (!patience_us) return tl::unexpected(patience_us.error());
  auto status = query_daemon(config->text("socket"), *patience_us);
  if (!status && status.error().kind == ErrorKind::kTimeout) {
    std::fprintf(stderr, "deft status: %s\n", status.error().message().c_str());
    return kExitNoAnswer;
  }
  if (!status) return tl::unexpected(with_deftruns(status.error(), config->text("socket")));
  if (as_json)
    put_json(status->json);
  else
    std::fputs(describe_status(status->json, status->path).c_str(), stdout);
  return kExitOk;
}

}  // namespace deft::tools
