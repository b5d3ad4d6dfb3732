// By which the parts of a job act on the job as a whole; and the exception boundary of its callbacks.
//
//   guard(control, "a timer", [&] { ... });   // whatever it throws fails this job, and no other one
//
// Reactor thread.
#pragma once

#include <string>

#include "core/base/status.h"
#include "daemon/base/guard.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class JobControl {
 public:
  virtual ~JobControl() = default;

  // The job fails, as this node decided: tells the leader, who tells all.
  virtual void fail(const Error& error) = 0;
  // Something broke that a lost node may be the cause of: the leader finds out who is lost, or that nobody is.
  virtual void suspect(const Error& error) = 0;
  // The job ends here and now, as all nodes know already.
  virtual void end(const Error& error, bool clean) = 0;
  // The leader has told who takes part.
  virtual void joined(wire::Joined message) = 0;
  // The links of all nodes are open.
  virtual void begin() = 0;
};

// Every callback of the reactor that runs code of a job goes through here: memory that is short, a thread that cannot be
// made, or our own mistake costs the one job that met it.
template <typename Callback>
void guard(JobControl& job, const std::string& what, const Callback& callback) {
  if (const auto error = caught(what, callback)) job.fail(*error);
}

}  // namespace deft::daemon
