// Asks a daemon. The caller need not be a worker of a job.
//
//   auto status = query_status(config.text("socket"), 3'000'000);
//   status->text;  status->path;
//   auto text = ask_daemon(config.text("socket"), encode(ChangeSettings{}, MessageKind::kChangeSettings, {job, "policy=p3"}), 10'000'000);
//
// `socket` is the option of this name, and may be empty: the daemon that a worker would use. All functions block, and give kUnavailable
// if no daemon listens, kTimeout if it does not answer within `patience_us`.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::ipc {

struct StatusText {
  std::string text;  // JSON
  std::string path;  // the path of the daemon's socket
};
Result<StatusText> query_status(const std::string& socket, TimeUs patience_us);

// Sends a message about a running job. Gives the text of the answer, or the error that the daemon gives.
Result<std::string> ask_daemon(const std::string& socket, std::span<const std::byte> message, TimeUs patience_us);

}  // namespace deft::ipc
