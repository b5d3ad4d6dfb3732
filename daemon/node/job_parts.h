// The parts of a job that live as long as one view of it, made together and dropped together.
//
// They are plain members: whoever brings an event (worker_events.h, leader_messages.h, job.h) calls the part that it is for.
// JobParts itself only connects the links' events with the other parts. Reactor thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/reactor.h"
#include "daemon/node/collective_table.h"
#include "daemon/node/gradient_groups.h"
#include "daemon/node/job_control.h"
#include "daemon/node/job_recorder.h"
#include "daemon/node/link_choice.h"
#include "daemon/node/link_recovery.h"
#include "daemon/node/link_set.h"
#include "daemon/node/measurements.h"
#include "daemon/node/stall_watchdog.h"
#include "daemon/node/store_client.h"

namespace deft::daemon {

class JobParts final : public LinkEvents {
 public:
  struct Surroundings {  // outlive the parts
    Reactor& reactor;
    const Membership& members;
    LeaderPort& leader;
    SchedulerPort* scheduler;  // null: the leader is on another node
    JobControl& control;
    std::string host;
    const LinkMaker& links;
    std::string state_folder = {};  // see job_recorder.h
  };

  JobParts(const Surroundings& around, std::shared_ptr<const View> view);
  ~JobParts() override;
  JobParts(const JobParts&) = delete;
  JobParts& operator=(const JobParts&) = delete;

  void links_open() override;
  void link_failed(std::size_t link, const Error& error) override;
  void progress_due() override;
  void transferred(std::size_t link, const SubCommTask& launch, const TransferDone& done) override {
    measurements.transferred(launch, done);
    recorder.transferred(link, done, MonotonicClock::now());
  }
  void failed(const Error& error) override { around_.control.fail(error); }
  [[nodiscard]] bool wants_segments() const override { return recorder.is_writing(); }
  void record_decisions();     // of the leader's schedulers, if they are on this node
  void await_stopped_links();  // looks at links that the leader stopped until they have ended

 private:
  const Surroundings around_;
  Reactor::TimerId look_again_ = 0;

 public:
  const Clock& clock;
  const std::shared_ptr<const View> view;
  const std::shared_ptr<StoreClient> store;  // shared with the threads of links
  GradientGroups groups;
  CollectiveTable collectives;
  Measurements measurements;
  LinkSet links;
  LinkRecovery recovery;
  StallWatchdog watchdog;
  JobRecorder recorder;
};

}  // namespace deft::daemon
