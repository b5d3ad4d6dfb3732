// How the parts of a job act on the job as a whole: they end it, or bring it on. Job implements it. Reactor thread.
#pragma once

#include "core/base/status.h"
#include "daemon/base/failure_detector.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class JobControl {
 public:
  virtual ~JobControl() = default;

  // The job fails, as this node decided: tells the leader, who tells all.
  virtual void fail(const Error& error) = 0;
  // Something broke that a lost node may be the cause of: the leader finds out who is lost, or that nobody is.
  virtual void suspect(const Error& error, FailureDetector::Broken broken) = 0;
  // The job ends here and now, as all nodes know already.
  virtual void end(const Error& error, bool clean) = 0;
  // The leader has told who takes part.
  virtual void joined(wire::Joined message) = 0;
  // The links of all nodes are open.
  virtual void begin() = 0;
};

}  // namespace deft::daemon
