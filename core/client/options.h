// The options of this process, for deft_open, deft_option and deft_policy_traits. They come from the DEFT_* variables and from
// the last call of deft_open, which wins. All functions may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/placement.h"
#include "core/base/status.h"

namespace deft::client {

// Loads the configuration from the DEFT_* variables and from `options`, which win; each is "name=value". Remembers `options`.
// kInvalid as Config::load has it. rank, world_size, local_rank and local_size are no options of the table;
// worker_environment reads them.
Result<Config> open_options(const std::vector<std::string>& options);

// This process's variables, but rank, world_size, local_rank and local_size of `options` win over DEFT_RANK and so on.
Environment worker_environment(const std::vector<std::string>& options);

// The effective value of `name`; the text lives as long as the process. kInvalid for a name that is not in the table.
Result<const char*> option_value(const std::string& name);

// The DEFT_POLICY_* bits of deft.h for the policy called `name`; kInvalid for an unknown one.
Result<int> policy_bits(const std::string& name);

}  // namespace deft::client
