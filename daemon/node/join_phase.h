// A node's way into its job: JOIN to the leader until it answers, and a deadline that names who is missing.
//
//   JoinPhase joining(reactor, members, line, control, host, links);
//   joining.begin();                                            // a worker is here; the deadline runs from here
//   joining.start();                                            // all local workers are here
//   joining.heard();                                            // the leader lives
//   joining.answered();  joining.finished();                    // JOINED has come; the job runs, or has ended
//
// Reactor thread.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/clock.h"
#include "daemon/base/reactor.h"
#include "daemon/node/job_control.h"
#include "daemon/node/leader_line.h"
#include "daemon/node/link_choice.h"
#include "daemon/node/membership.h"

namespace deft::daemon {

class JoinPhase {
 public:
  // All references outlive this object.
  JoinPhase(Reactor& reactor, const Membership& members, LeaderLine& line, JobControl& control, std::string host,
            const LinkMaker& links);
  ~JoinPhase();
  JoinPhase(const JoinPhase&) = delete;
  JoinPhase& operator=(const JoinPhase&) = delete;

  void begin();  // no effect the second time
  void start();  // `line` is open
  void heard() { heard_ = true; }
  void answered();
  void finished();

  [[nodiscard]] const std::vector<link::LinkSpec>& links() const {
    return choice_.specs;
  }  // of this node; after start()

 private:
  void send();
  void on_deadline();
  [[nodiscard]] Error nobody_answered() const;

  Reactor& reactor_;
  const Membership& members_;
  LeaderLine& line_;
  JobControl& control_;
  const std::string host_;
  const LinkMaker& links_;
  TimeUs began_us_ = 0;
  LinkChoice choice_;
  bool heard_ = false;
  Reactor::TimerId again_ = 0, deadline_ = 0;
};

}  // namespace deft::daemon
