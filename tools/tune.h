// deft tune: tries settings on a job while it trains. The Python program tools/deft_tuner does the work.
//
//   Result<int> status = run_tune(arguments);   // returns only if that program cannot be run
#pragma once

#include "tools/command.h"

namespace deft::tools {

Result<int> run_tune(Arguments arguments);

}  // namespace deft::tools
