// The command `deft simulate`, which runs policies on a profile in virtual time.
#pragma once

#include "tools/command.h"

namespace deft::tools {

Result<int> run_simulate(Arguments arguments);

}  // namespace deft::tools
