// The options that this process runs with, for deft_option: its DEFT_* variables and what deft_open was given last.
#pragma once

#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"

namespace deft::client {

// Loads the configuration from `options` ("name=value" each) over the DEFT_* variables and remembers `options`.
Result<Config> open_options(const std::vector<std::string>& options);

// The effective value of `name`; the text lives as long as the process. kInvalid for a name that is not in the table.
Result<const char*> option_value(const std::string& name);

}  // namespace deft::client
