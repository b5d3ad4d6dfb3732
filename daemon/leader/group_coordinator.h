// One group of gradients, on the leader: agrees its declaration, drives its scheduler, and keeps its launches and plans.
//
//   GroupCoordinator group({job, id, world}, settings, codecs);
//   auto agreed = group.declare(node, declare, links, name_of);      // once all nodes have: DECLARE_AGREED to all
//   group.bucket_ready(bucket, generation, now_us);                  // events of the leader's own node ...
//   for (auto& change : group.take_policy_changes()) ...             // for people, and traces
//   if (auto plan = group.take_plan()) ...                           // ... then PLAN_ORDER to all, before
//   if (auto order = group.take_launches(links, now_us)) ...         // LAUNCH_ORDER to all
//   if (const auto* launch = group.outstanding(number)) group.finished(number, now_us);
//
// Every event but a declaration needs agreed(). No I/O, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/model/update_schedule.h"
#include "core/sched/scheduler.h"
#include "daemon/base/settings.h"
#include "daemon/leader/job_codecs.h"
#include "daemon/leader/link_failover.h"
#include "daemon/leader/offloaded_plans.h"
#include "daemon/leader/plan_preserver.h"
#include "daemon/leader/step_times.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class GroupCoordinator {
 public:
  using NameOfNode = std::function<std::string(std::size_t node)>;  // "rank 2", for errors

  struct Identity {
    std::string job;  // for the log
    std::uint32_t group = 0;
    std::uint32_t world = 1;
    uid_t user = 0;  // for the log
  };

  // `settings` and `codecs` outlive the group. `offload` is for plans; without it they are made at once.
  GroupCoordinator(Identity id, const JobSettings& settings, JobCodecs& codecs, Offload offload = {})
      : id_(std::move(id)),
        settings_(settings),
        offload_(std::move(offload)),
        declared_(codecs.nodes()),
        codecs_{codecs} {}

  // Node `node` declares the group. Gives the agreement when it is the last one; nothing before that, or if it is agreed already.
  // kMismatch: the nodes declare differently, and both are named.
  Result<std::optional<wire::DeclareAgreed>> declare(std::size_t node, wire::Declare declare, const LinkFailover& links,
                                                     const NameOfNode& name_of);
  [[nodiscard]] bool agreed() const { return scheduler_ != nullptr; }
  [[nodiscard]] std::size_t buckets() const { return schedules_.size(); }  // 0: not agreed
  [[nodiscard]] sched::Scheduler& scheduler() { return *scheduler_; }

  void bucket_ready(model::BucketIndex bucket, std::uint64_t generation, TimeUs now_us);
  // Rank 0 began a stage, as one optimizer of the job counts steps. The group may be another one's, which makes more or fewer steps: a
  // step that the group cannot have come to says nothing about it.
  void stage_began(sched::Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  // Rank 0 ended the generation under way before `step`. kViolation for a step that is far ahead.
  Result<void> flushed(std::uint64_t step, TimeUs now_us);
  // Rank 0 wants the gradients of `step` to travel as they are, with all residuals. kViolation likewise.
  Result<void> residuals_asked_for(std::uint64_t step);
  // A launch that is not finished on the own node. Null: the group has no such launch, or it is finished.
  [[nodiscard]] const sched::Launch* outstanding(std::uint64_t number) const;
  void finished(std::uint64_t number, TimeUs now_us);  // of an outstanding launch
  // The bytes by which the link of a launch is measured. Nothing if it takes other times than its like.
  [[nodiscard]] std::optional<std::uint64_t> measured_bytes(const sched::Launch& launch) const;
  void take_statistics(std::size_t node, const wire::GradientStatistics& statistics);

  // What was decided about the policy since the last call. It stands in the log and the status already.
  std::vector<sched::PolicyChange> take_policy_changes();
  // The decisions of the scheduler since the last call; a plan must reach the nodes before the launches.
  std::optional<wire::PlanOrder> take_plan();
  std::optional<wire::LaunchOrder> take_launches(LinkFailover& links, TimeUs now_us);

  [[nodiscard]] std::size_t outstanding_launches() const { return outstanding_.size(); }
  // Appends this group's newest plans, its merged buckets, its newest policies and the one in force, step times, and its preserver to the
  // lists of these names.
  void add_status(nlohmann::json& leader) const;

 private:
  Result<wire::DeclareAgreed> agree(const LinkFailover& links);
  Result<void> start_scheduler(std::vector<model::Bucket> buckets, const LinkFailover& links);
  [[nodiscard]] std::shared_ptr<PlanPreserver> make_preserver(const plan::PlanLimits& limits) const;

  const Identity id_;
  const JobSettings& settings_;
  const Offload offload_;
  std::vector<std::optional<wire::Declare>> declared_;  // by node
  std::unique_ptr<sched::Scheduler> scheduler_;         // once agreed
  struct GroupCodecs {
    JobCodecs& of_job;
    std::vector<model::CodecCost> list = {};           // that plans choose among, as the group began
    std::vector<model::CodedShare> coded_shares = {};  // of the buckets; empty: no plan chooses codecs
    std::vector<bool> telling = {};                    // [bucket]: its launches tell how fast a link is
    // Whose gradients take residuals along, because rank 0 asked for it: the newest ones.
    std::set<std::uint64_t> exact_steps = {};

    // False for half an all-reduce: if launches are halves, nothing is encoded, so there are no residuals.
    [[nodiscard]] bool takes_residuals(const model::UpdateSchedule& schedule, const sched::Launch& launch) const;
    [[nodiscard]] std::uint64_t link_bytes(const sched::Launch& launch) const;
  } codecs_;
  std::shared_ptr<PlanPreserver> preserver_;            // null: its plans are not judged
  std::vector<model::UpdateSchedule> schedules_;        // of the buckets: from plans and rank 0's flushes
  std::map<std::uint64_t, sched::Launch> outstanding_;  // by number
  std::uint64_t newest_ = 0;                            // generation of bucket 0 that was ready
  std::uint64_t epoch_ = 0;                             // plans so far
  struct Shown {                                        // in the status: the newest ones
    nlohmann::json plans = nlohmann::json::array();
    nlohmann::json policies = nlohmann::json::array();
    nlohmann::json merging;  // which buckets are merged now; null: none was chosen yet
    StepTimes step_times;
  } shown_;
};

// The hash of a group's declaration and buckets, which every node computes for itself.
std::uint64_t group_hash(const std::vector<model::TensorSpec>& specs, const wire::DeclareAgreed& agreed);

}  // namespace deft::daemon
