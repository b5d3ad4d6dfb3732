// The checks of `deft doctor`. Each check looks at one thing and returns a finding. No check changes the machine.
//
//   for (const Finding& finding : {check_pidfd(), check_memory(config)}) print(finding);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"

namespace deft::tools {

enum class Health : std::uint8_t { kOk, kWarn, kFail };

struct Finding {
  Health health = Health::kOk;
  std::string subject;  // "daemon", "memory", ...
  std::string text;     // the finding itself
  std::string fix;      // what the user can do; empty if all is well
};

// Checks of the machine: the kernel's features and limits (machine_checks.cc).
Finding check_shared_memory();
Finding check_pidfd();
Finding check_memory(const Config& config);
Finding check_memlock();
Finding check_open_files();
Finding check_cores(const Config& config);
Finding check_congestion_control();
Finding check_namespaces();

// Checks of Deft: the daemon, the NICs, the Python package (deft_checks.cc).
Finding check_daemon(const Config& config);
std::vector<Finding> check_links(const Config& config);
Finding check_secret(const Config& config);
Finding check_python();

}  // namespace deft::tools
