// The option merge_groups, of the policy mergecomp.
//
//   if (auto ok = check_merge_groups("even:4"); !ok) ...
#pragma once

#include <string>

#include "core/base/status.h"

namespace deft::sched {

// kInvalid if `text` is none of 1, 2, 3, exact and even:GROUPS.
Result<void> check_merge_groups(const std::string& text);

}  // namespace deft::sched
