// The events of the leader's own node, and the times of launches, for its schedulers.
//
// A node and its leader exchange only messages (daemon/wire/messages.h), with one exception: this interface. A job's
// schedulers follow the events of one node, the leader's own, and a message for each bucket would cost that node a turn of
// the reactor before every launch. So these are calls within one process. Only the node of rank 0 has a SchedulerPort;
// the other nodes hold none. LaunchCoordinator implements it. Reactor thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/sched/scheduler.h"

namespace deft::daemon {

// The policy of a group of gradients, from a step on.
struct GroupPolicy {
  std::uint32_t group = 0;
  sched::PolicyChange change;
};

class SchedulerPort {
 public:
  virtual ~SchedulerPort() = default;

  // All local workers have handed in the bucket's tensors of `generation`.
  virtual void bucket_ready(std::uint32_t group, model::BucketIndex bucket, std::uint64_t generation) = 0;
  // Rank 0 began a stage of `step`; it has waited `waited_us` for updates since the stage before.
  virtual void stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) = 0;
  // Rank 0 ended the generation under way before `step`. kViolation for a step that is far ahead.
  virtual Result<void> flushed(std::uint32_t group, std::uint64_t step) = 0;
  // Rank 0 wants the gradients of `step` to travel as they are, with all residuals. kViolation for a step that is far ahead.
  virtual Result<void> residuals_asked_for(std::uint32_t group, std::uint64_t step) = 0;
  // This node has finished a launch. `link_us` and `overlapped` as TransferDone has them.
  virtual void launch_finished(std::uint64_t number, std::optional<TimeUs> link_us, bool overlapped) = 0;
  // With which policies groups begin, and what was decided about them since the last call. Each is given once, for traces.
  virtual std::vector<GroupPolicy> take_policies() = 0;
  // What the schedulers take a link for by now. Null: there is no such link.
  [[nodiscard]] virtual const model::LinkModel* link_cost(model::LinkIndex link) const = 0;
};

}  // namespace deft::daemon
