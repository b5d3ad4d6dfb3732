#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/findings.h"

namespace deft::tools {
namespace {

constexpr const char* kHealthNames[] = {"ok", "warn", "fail"};

const char* name_of(Health health) { return kHealthNames[static_cast<std::size_t>(health)]; }

std::vector<Finding> examine(const Config& config) {
  std::vector<Finding> all{{Health::kOk, "version", "deft " DEFT_VERSION, ""},
                           {Health::kOk, "options", config.effective(), ""},
                           check_daemon(config)};
  for (auto& finding : check_links(config)) all.push_back(std::move(finding));
  for (auto& finding :
       {check_secret(config), check_shared_memory(), check_pidfd(), check_memory(config), check_memlock(),
        check_open_files(), check_cores(config), check_congestion_control(), check_namespaces(), check_python()})
    all.push_back(finding);
  return all;
}

void print_json(const std::vector<Finding>& findings) {
  auto out = nlohmann::json::array();
  for (const auto& f : findings)
    out.push_back({{"check", f.subject}, {"health", name_of(f.health)}, {"found", f.text}, {"fix", f.fix}});
  std::puts(out.dump(2).c_str());
}

void print_text(const std::vector<Finding>& findings) {
  for (const auto& f : findings) {
    std::printf("%-4s  %-13s %s\n", name_of(f.health), f.subject.c_str(), f.text.c_str());
    if (!f.fix.empty()) std::printf("      %-13s -> %s\n", "", f.fix.c_str());
  }
}

}  // namespace

Result<int> run_doctor(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const bool as_json = take_flag(arguments, "--json");
  auto config = load_config(arguments);
  if (!config) return tl::unexpected(config.error());
  const auto findings = examine(*config);
  as_json ? print_json(findings) : print_text(findings);
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.health == Health::kFail; });
  return failed ? kExitFailed : kExitOk;
}

}  // namespace deft::tools
