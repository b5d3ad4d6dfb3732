// Asks a daemon for its status, as JSON text. The caller needs no job.
//
//   auto status = query_status(config.text("socket"), 3'000'000);
//   status->text;  status->path;
#pragma once

#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::ipc {

struct StatusText {
  std::string text;
  std::string path;  // the path of the daemon's socket
};

// Asks the daemon that a worker would use; `socket` is the option of this name, and may be empty. kUnavailable if no daemon
// listens, kTimeout if it does not answer within `patience_us`. Blocks.
Result<StatusText> query_status(const std::string& socket, TimeUs patience_us);

}  // namespace deft::ipc
