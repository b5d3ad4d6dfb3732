#include <algorithm>
#include <cstdio>

#include "tools/command.h"
#include "tools/findings.h"

namespace deft::tools {
namespace {

std::vector<Finding> examine(const Config& config) {
  std::vector<Finding> all{{Health::kOk, "version", "deft " DEFT_VERSION, ""},
                           {Health::kOk, "options", config.effective(), ""},
                           check_daemon(config)};
  for (auto check : {check_links, check_nics, check_leader})
    for (auto& finding : check(config)) all.push_back(std::move(finding));
  for (auto& finding : {check_secret(config), check_shared_memory(), check_pidfd(), check_memory(config),
                        check_memlock(), check_open_files(), check_cores(config), check_congestion_control(),
                        check_huge_pages(), check_namespaces(), check_python()})
    all.push_back(finding);
  return all;
}

}  // namespace

Result<int> run_doctor(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const bool as_json = take_flag(arguments, "--json");
  auto config = load_config(arguments);
  if (!config) return tl::unexpected(config.error());
  const auto findings = examine(*config);
  if (as_json)
    put_json(to_json(findings));
  else
    std::fputs(to_text(findings).c_str(), stdout);
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.health == Health::kFail; });
  return failed ? kExitFailed : kExitOk;
}

}  // namespace deft::tools
