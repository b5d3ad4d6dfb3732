// Decides if a port may be opened as the options say. Whoever reaches an unguarded port can disturb jobs.
#pragma once

#include <string>

#include "core/base/config.h"

namespace deft::daemon {

// `port`: the port whose address is the option `listen`, for instance "control port". An error: other machines reach it, no key guards it,
// and nobody said that this is right (insecure). If somebody did, the log gets a warning; and also if others can read the key.
Result<void> check_exposure(const Config& config, const std::string& port);

}  // namespace deft::daemon
