// Checks the flag --policy of commands that look at one policy, or at all of them.
//
//   if (auto ok = check_policy(options.policy); !ok) return ok;
#pragma once

#include <string>

#include "core/base/status.h"

namespace deft::tools {

// kInvalid unless `policy` is the name of a policy, or "all"; suggests the nearest name.
Result<void> check_policy(const std::string& policy);

}  // namespace deft::tools
