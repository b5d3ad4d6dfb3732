// The checks of `deft doctor`. Each looks at one thing and returns what it found. No check changes the machine.
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
  std::string text;     // what was found
  std::string fix;      // what to do; empty if all is well
};

// The machine: what the kernel offers and how much of it (machine_checks.cc).
Finding check_shared_memory();
Finding check_pidfd();
Finding check_memory(const Config& config);
Finding check_memlock();
Finding check_open_files();
Finding check_cores(const Config& config);
Finding check_congestion_control();
Finding check_namespaces();

// Deft itself: the daemon, the NICs, the Python package (deft_checks.cc).
Finding check_daemon(const Config& config);
std::vector<Finding> check_links(const Config& config);
Finding check_secret(const Config& config);
Finding check_python();

}  // namespace deft::tools
