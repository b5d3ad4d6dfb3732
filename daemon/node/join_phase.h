// A node's way into its job: JOIN to the leader until it answers, and the deadline of the gathering, which names who is missing.
//
// All nodes gather by one deadline: a timeout after the first worker came to any of them, all workers have come. Then the links have a
// timeout to open.
//
//   JoinPhase joining(reactor, members, line, control, host, links);
//   joining.begin();                                            // a worker is here; the deadline runs from here
//   joining.gathered_by_us();                                   // on the reactor's clock
//   joining.start();                                            // all local workers are here
//   joining.heard();                                            // the leader lives
//   joining.answered();  joining.finished();                    // JOINED has come; the job runs, or has ended
//
// Reactor thread.
#pragma once

#include <cstdint>
#include <optional>
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
  void heard() { heard_us_ = reactor_.now_us(); }
  void answered();
  void finished();

  [[nodiscard]] TimeUs gathered_by_us() const { return gathered_by_us_; }
  [[nodiscard]] const std::vector<link::LinkSpec>& links() const {
    return choice_.specs;
  }  // of this node; after start()

 private:
  void send();
  void watch_leader();
  void on_deadline();
  [[nodiscard]] Error nobody_answered() const;

  Reactor& reactor_;
  const Membership& members_;
  LeaderLine& line_;
  JobControl& control_;
  const std::string host_;
  const LinkMaker& links_;
  TimeUs gathered_by_us_ = 0;
  LinkChoice choice_;
  std::optional<TimeUs> heard_us_;  // when the leader was heard last
  bool asked_ = false;              // the leader, for its decision at the deadline
  Reactor::TimerId again_ = 0, deadline_ = 0;
};

}  // namespace deft::daemon
