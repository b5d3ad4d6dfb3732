// deft trace dump|start|stop, and deft explain --live: ask the daemon on the node of rank 0 for a trace of a running job.
#pragma once

#include <string>

#include "tools/command.h"

namespace deft::tools {

// `arguments`: the action, and what belongs to it.
Result<int> control_trace(Arguments arguments);

// Makes all nodes of a running job write their newest events. Gives the path of this node's file once it is complete, and those of other
// nodes beside it are no older. A file that stays older is named. `job`: empty if the user has one job on the daemon.
Result<std::string> dump_trace(const Config& config, const std::string& job);

}  // namespace deft::tools
