// The order that `deft trace dump|start|stop` gives to every node of a running job. The leader sends it to all nodes (messages.h).
#pragma once

#include <cstdint>
#include <string>

#include "core/ipc/messages.h"

namespace deft::daemon::wire {

struct TraceOrder {
  ipc::TraceAction action = ipc::TraceAction::kDump;
  std::string folder = {};  // of a start: from the root
  std::uint32_t steps = 0;  // of a start: each node ends after so many of its steps; 0: when a user stops it
};

}  // namespace deft::daemon::wire
