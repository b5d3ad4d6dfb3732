// The commands of clients that are no workers to a running job: `deft set` and `deft trace`.
//
//   auto answer = answer_command(packet, peer.uid, commands);   // an error: the client breaks the protocol
//   connection.send(*answer);                                      // a text, or why it was refused
//
// The kernel has told whose the client is. Reactor thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "core/ipc/message_socket.h"
#include "core/sched/settings_change.h"
#include "daemon/wire/trace_order.h"

namespace deft::daemon {

// A user may command an own job, and root all jobs.
class JobCommands {
 public:
  virtual ~JobCommands() = default;
  // An error: the job goes on as it was.
  virtual Result<void> change_settings(uid_t user, const std::string& job, const sched::SettingsChange& change) = 0;
  // Gives the path of this node's file.
  virtual Result<std::string> trace(uid_t user, const std::string& job, const wire::TraceOrder& order) = 0;
};

// `packet` is a CHANGE_SETTINGS or a TRACE.
Result<std::vector<std::byte>> answer_command(const ipc::Packet& packet, uid_t user, JobCommands& commands);

}  // namespace deft::daemon
