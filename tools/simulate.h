// The command `deft simulate`, which runs policies on a profile in virtual time.
#pragma once

#include <span>
#include <string>

namespace deft::tools {

// `arguments` stand behind the word `simulate`. Returns the exit status: 0 success, 1 failure, 2 wrong usage.
int run_simulate(std::span<const std::string> arguments);

}  // namespace deft::tools
