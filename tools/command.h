// The commands of `deft`: one file each, listed in main.cc.
//
//   Result<int> run_status(Arguments arguments);   // gives the exit status; an error is printed by main
//
// Exit statuses: 0 well, 1 failed, 2 wrong usage (errors of kind kInvalid).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"

namespace deft::tools {

using Arguments = std::span<const std::string>;  // what stands behind the command's name

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

Result<int> run_status(Arguments arguments);
Result<int> run_doctor(Arguments arguments);
Result<int> run_check_build(Arguments arguments);
Result<int> run_keygen(Arguments arguments);
Result<int> run_options(Arguments arguments);
Result<int> run_probe(Arguments arguments);

// Takes `flag` out of `arguments`; true when it was there.
bool take_flag(std::vector<std::string>& arguments, std::string_view flag);

// The configuration from the flags that are left, the DEFT_* variables and the flag file.
Result<Config> load_config(const std::vector<std::string>& flags);

// A command that takes no argument (any more): the first one left is an error.
Result<void> expect_none(const std::vector<std::string>& arguments);

}  // namespace deft::tools
