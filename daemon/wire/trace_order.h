// What `deft trace dump|start|stop` wants of every node of a running job. The leader sends it to all nodes (messages.h).
#pragma once

#include <string>

#include "core/ipc/messages.h"

namespace deft::daemon::wire {

struct TraceOrder {
  ipc::TraceAction action = ipc::TraceAction::kDump;
  std::string folder = {};  // of a start: from the root
};

}  // namespace deft::daemon::wire
