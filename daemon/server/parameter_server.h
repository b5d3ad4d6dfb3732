// deftd server: a parameter server for ps links, in place of a node's daemon.
#pragma once

#include <functional>

#include "core/base/config.h"

namespace deft::daemon {

// Serves on the option `listen` until `signals_fd` is readable, and then for the timeout while links are open. `usable` is
// called once it can be reached.
Result<void> serve_parameters(const Config& config, int signals_fd, const std::function<void()>& usable);

}  // namespace deft::daemon
