// `deft simulate`: what each policy would make of a profile, in virtual time.
#pragma once

#include <span>
#include <string>

namespace deft::tools {

// `arguments` are those behind the word `simulate`. Gives the exit status: 0 ok, 1 failed, 2 wrong usage.
int run_simulate(std::span<const std::string> arguments);

}  // namespace deft::tools
