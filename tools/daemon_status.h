// Asks a daemon for its status over the unix socket. The caller needs no job.
//
//   auto status = query_daemon(config.text("socket"), 3'000'000);
//   describe_status(status->json, status->path);
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::tools {

struct DaemonStatus {
  nlohmann::json json;
  std::string path;  // the path of the daemon's socket
};

// Asks the daemon that a worker would use; `socket` is the option of this name, and may be empty. kUnavailable if no daemon
// listens, kTimeout if it does not answer within `patience_us`. Blocks.
Result<DaemonStatus> query_daemon(const std::string& socket, TimeUs patience_us);

// A field of a status. One that is missing, or of another type, counts as `otherwise`, or as an empty list: a daemon of another version
// may have it so.
bool flag_of(const nlohmann::json& object, const char* key, bool otherwise);
std::string text_of(const nlohmann::json& object, const char* key, const std::string& otherwise);
nlohmann::json list_of(const nlohmann::json& object, const char* key);

// The status as lines of text for people. Each line ends with a line break.
std::string describe_status(const nlohmann::json& status, const std::string& path);

}  // namespace deft::tools
