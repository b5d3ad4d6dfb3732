// How the parts of a job on a node speak to the job's leader: typed messages, wherever the leader is.
//
// On the leader's own node a message goes through the reactor, too, so that a node never runs inside its leader's code or the
// other way round. daemon/leader/scheduler_port.h has the one exception. Reactor thread.
#pragma once

#include "daemon/wire/messages.h"

namespace deft::daemon {

class LeaderPort {
 public:
  virtual ~LeaderPort() = default;
  // Messages arrive in the order in which they are sent, or the leader is lost. Never blocks, never fails.
  virtual void send(wire::ToLeader message) = 0;
};

}  // namespace deft::daemon
