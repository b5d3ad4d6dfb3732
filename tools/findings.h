// The checks of `deft doctor`. Each check looks at one thing and returns a finding. No check changes the machine.
//
//   for (const Finding& finding : {check_pidfd(), check_memory(config)}) print(finding);
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
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

// One line a finding, and one more with what to do.
std::string to_text(const std::vector<Finding>& findings);
nlohmann::json to_json(const std::vector<Finding>& findings);

// Checks of the machine: the kernel's features and limits (machine_checks.cc).
Finding check_shared_memory();
Finding check_pidfd();
Finding check_memory(const Config& config);
Finding check_memlock();
Finding check_open_files();
Finding check_cores(const Config& config);
Finding check_congestion_control();
Finding check_huge_pages();
Finding check_namespaces();

// Checks of the NICs of DEFT_LINKS, and of the way to rank 0's node (network_checks.cc). Empty where there is nothing to check.
std::vector<Finding> check_nics(const Config& config);
std::vector<Finding> check_leader(const Config& config);
// Connects to host:port by TCP, waits at most 3 s, and closes: 0, or errno. EADDRNOTAVAIL: the name is not known.
int connect_error(const std::string& address);

// Checks of Deft: the daemon, DEFT_LINKS, the secret file, the Python package (deft_checks.cc).
Finding check_daemon(const Config& config);
std::vector<Finding> check_links(const Config& config);
Finding check_secret(const Config& config);
Finding check_python();

}  // namespace deft::tools
