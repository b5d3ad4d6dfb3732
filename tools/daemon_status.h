// Asks a daemon for its status over the unix socket; no job is needed for it.
//
//   auto status = query_daemon(ipc::socket_path(config.text("socket")), 3'000'000);
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::tools {

// The daemon's JSON. kUnavailable where none listens, kTimeout where one does not answer within `patience_us`.
Result<nlohmann::json> query_daemon(const std::string& path, TimeUs patience_us);

// The same for people.
std::string describe_status(const nlohmann::json& status, const std::string& path);

}  // namespace deft::tools
