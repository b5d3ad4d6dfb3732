// Gathers the measurements of a node and sends them to the leader: step times and gradient statistics of all its workers, and the times of
// codecs.
//
//   measurements.transferred(launch, done);
//   measurements.stage_began(worker, record, now_us);   // every few steps STEP_TIME: the slowest worker's step, and codecs since the last
//   measurements.take(worker, statistics);              // when all have sent theirs of one step: GRADIENT_STATISTICS
//
// On the leader's own node the schedulers hear of rank 0's stages, too. Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/ipc/messages.h"
#include "core/sched/step_timer.h"
#include "core/shm/layout.h"
#include "daemon/leader/scheduler_port.h"
#include "daemon/node/codec_times.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"

namespace deft::daemon {

class Measurements {
 public:
  static constexpr std::size_t kStepsTold = 4;  // steps of a worker between two STEP_TIME messages

  // `scheduler`: null if the leader is on another node. All outlive this object.
  Measurements(const Membership& members, LeaderPort& leader, SchedulerPort* scheduler)
      : members_(members),
        leader_(leader),
        scheduler_(scheduler),
        codecs_(members.settings().codecs),
        steps_(members.workers().size()),
        waited_us_(steps_.size()) {}

  void transferred(const SubCommTask& launch, const TransferDone& done) { codecs_.add(launch, done); }
  void stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us);
  void take(std::size_t worker, const ipc::Statistics& statistics);

  void forget(std::uint32_t group) { statistics_.erase(group); }  // it was released

  // The time of a local worker's steps. Waiting is time in which it computed nothing, because it needed others' gradients.
  struct Steps {
    std::uint64_t ended = 0;
    double compute_us = 0;  // of a usual step, without waiting
    TimeUs waited_us = 0;   // in all steps together
  };
  [[nodiscard]] Steps steps(std::size_t worker) const {
    return {steps_[worker].ended(), steps_[worker].usual_us(), waited_us_[worker]};
  }

 private:
  const Membership& members_;
  LeaderPort& leader_;
  SchedulerPort* const scheduler_;
  CodecTimes codecs_;
  std::vector<sched::StepTimer> steps_;  // by local index
  std::vector<TimeUs> waited_us_;        // likewise
  std::map<std::uint32_t, std::vector<std::optional<ipc::Statistics>>>
      statistics_;  // by group and local index: the newest
};

}  // namespace deft::daemon
