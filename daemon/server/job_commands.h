// The commands of clients that are no workers to a running job: `deft set` and `deft trace`.
//
//   const auto answer = [&](std::vector<std::byte> packet) { connection.send(packet); };   // a text, or why it was refused
//   auto ok = answer_command(packet, peer.uid, commands, answer);                          // an error: the client breaks the protocol
//
// The kernel has told whose the client is. Reactor thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
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
  // Tells, now or later, the path of this node's file.
  using TraceTold = std::function<void(Result<std::string> path)>;
  virtual void trace(uid_t user, const std::string& job, const wire::TraceOrder& order, const TraceTold& told) = 0;
};

// `packet` is a CHANGE_SETTINGS or a TRACE. The answer comes now or later.
Result<void> answer_command(const ipc::Packet& packet, uid_t user, JobCommands& commands,
                            const std::function<void(std::vector<std::byte>)>& answer);

}  // namespace deft::daemon
