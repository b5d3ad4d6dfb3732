// All groups of gradients of a job, on the leader: brings events to their schedulers, and tells all nodes what these decide.
//
//   LaunchCoordinator launches({job, world, nodes}, settings, clock, links, [&](const wire::ToNode& message) { to_all(message); });
//   launches.declare(node, declare, name_of);          // the last node's: DECLARE_AGREED to all
//   launches.start();                                  // the links of all nodes are open
//   launches.bucket_ready(group, bucket, generation);  // PLAN_ORDER and LAUNCH_ORDER to all
//   launches.release(node, group);                     // the last node's: RELEASED to all, and the group is forgotten here
//
// Events come from the leader's own node, by SchedulerPort, and from the leader. Before start() and after stop() they are ignored.
// No I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/sched/settings_change.h"
#include "daemon/base/settings.h"
#include "daemon/leader/group_coordinator.h"
#include "daemon/leader/job_codecs.h"
#include "daemon/leader/late_nodes.h"
#include "daemon/leader/link_failover.h"
#include "daemon/leader/offloaded_plans.h"
#include "daemon/leader/scheduler_port.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class LaunchCoordinator final : public SchedulerPort {
 public:
  using ToAll = std::function<void(const wire::ToNode&)>;
  struct JobSize {
    std::string job;  // for the log
    std::uint32_t world = 1;
    std::size_t nodes = 1;
    uid_t user = 0;  // for the log
  };

  // All references outlive this object. `to_all` must not call it back. `offload` is for plans; without it they are made at once.
  LaunchCoordinator(JobSize size, const JobSettings& settings, const Clock& clock, LinkFailover& links, ToAll to_all,
                    Offload offload = {})
      : size_(std::move(size)),
        settings_(settings),
        clock_(clock),
        links_(links),
        to_all_(std::move(to_all)),
        offload_(std::move(offload)),
        codecs_(settings_, size_.nodes),
        undeclared_(lateness_of(settings), "declared the gradients") {}

  // A node's declaration of a group. An error ends the job: the nodes contradict each other.
  Result<void> declare(std::size_t node, wire::Declare declare, const GroupCoordinator::NameOfNode& name_of);
  // All workers of a node have released an agreed group. kViolation: they had before. Its gradients that were not ordered yet are
  // dropped: all ranks have said that they wait for none.
  Result<void> release(std::size_t node, std::uint32_t group);
  void start() { running_ = true; }
  void stop() { running_ = false; }

  void bucket_ready(std::uint32_t group, model::BucketIndex bucket, std::uint64_t generation) override;
  void stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) override;
  Result<void> flushed(std::uint32_t group, std::uint64_t step) override;
  Result<void> residuals_asked_for(std::uint32_t group, std::uint64_t step) override;
  void launch_finished(std::uint64_t number, std::optional<TimeUs> link_us, bool overlapped) override;
  std::vector<GroupPolicy> take_policies() override { return std::exchange(decided_.policies, {}); }
  [[nodiscard]] const model::LinkModel* link_cost(model::LinkIndex link) const override {
    return link < links_.size() ? &links_.cost(link) : nullptr;
  }

  void take_statistics(std::size_t node, const wire::GradientStatistics& statistics);
  void slowest_step_measured(double us);
  void codecs_measured(std::size_t node, std::span<const wire::CodecTime> times);
  void link_lost(model::LinkIndex link);  // nothing more is sent there
  // Changes the settings of all groups. After an error nothing has changed. A group that is declared later gets them, too, unless it
  // cannot have them: then it keeps the job's own.
  Result<void> change_settings(const sched::SettingsChange& change);

  [[nodiscard]] std::size_t buckets(std::uint32_t group) const;  // 0: the group is not agreed
  // Nodes that have not declared a group which others have.
  [[nodiscard]] LateNodes& undeclared() { return undeclared_; }
  // Adds "plans", "merging", "policies", "policies_in_force", "preserver", "step_times", "codecs", "settings" and "outstanding" (launches)
  // to `json`.
  void add_status(nlohmann::json& json) const;

 private:
  void pump(std::uint32_t id, GroupCoordinator& group);

  const JobSize size_;
  const JobSettings& settings_;
  const Clock& clock_;
  LinkFailover& links_;
  const ToAll to_all_;
  const Offload offload_;
  JobCodecs codecs_;
  LateNodes undeclared_;
  std::map<std::uint32_t, GroupCoordinator> groups_;
  struct Lives {                                                       // of groups
    std::uint32_t begun = 0;                                           // all numbers below were declared by some node
    std::map<std::uint32_t, std::vector<bool>> released_by_node = {};  // of those that some nodes have released
  } lives_;
  struct Decided {
    sched::SettingsChange settings = {};     // that the user has changed
    std::vector<GroupPolicy> policies = {};  // that were not taken yet
  } decided_;
  bool running_ = false;
};

}  // namespace deft::daemon
