// The groups of gradients of a job on one node: declared by its workers, agreed by all nodes, then reduced launch by launch.
//
//   groups.declare(worker, declaration);      // each local worker; the last one's sends DECLARE to the leader
//   groups.agree(agreed);                     // the leader's answer: buckets; each worker gets its arena, some time later
//   groups.ready(worker, record, now_us);     // tensors are in the arena; true: buckets became ready
//   auto task = groups.order(launch, number, now_us);   // the leader's launch, checked against the workers' gradients
//   groups.finish(*task, done);               // FINISH to the workers for the tensors that are complete
//   groups.release(worker, record);           // each local worker; the last one's sends RELEASE to the leader
//   groups.end(released);                     // the leader's answer: when nothing of the group is under way here, it goes
//
// A group's number is never used again. So what crosses a RELEASE on its way cannot be meant for another group.
//
// daemon/node/gradients.h keeps the account of one group. On the leader's own node the schedulers hear of ready buckets, flushes
// and finished launches through a SchedulerPort. Errors: kViolation and kMismatch of a worker's call concern that worker; an
// error of declare, agree, follow, order and finish ends the job. No I/O but through the ports. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/leader/scheduler_port.h"
#include "daemon/node/coding_map.h"
#include "daemon/node/gradients.h"
#include "daemon/node/launch_source.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class GradientGroups final : public LaunchSource {
 public:
  struct GroupState {
    std::vector<std::optional<Declaration>> declared;   // by local index
    std::unique_ptr<Gradients> gradients;               // once all local workers have declared it
    CodingMap codings;                                  // likewise
    std::vector<std::shared_ptr<shm::Segment>> arenas;  // by local index; outlive their sessions; null: not made yet
    bool agreed = false;                                // by all nodes: it has buckets
    std::vector<bool> released;                         // once agreed, by local index: this worker uses it no more
    bool ended = false;                                 // all ranks have released it: nothing more is ordered
    std::size_t under_way = 0;                          // launches that were ordered and are not done here

    [[nodiscard]] bool released_by(std::size_t worker) const { return worker < released.size() && released[worker]; }
    [[nodiscard]] bool released_by_all() const;  // local workers
  };

  // `scheduler`: null if the leader is on another node. `links`: of the job. All outlive this object. `fail` ends the job: no memory for
  // an arena.
  GradientGroups(const Membership& members, LeaderPort& leader, SchedulerPort* scheduler, std::size_t links,
                 std::function<void(const Error&)> fail)
      : members_(members), leader_(leader), scheduler_(scheduler), links_(links), fail_(std::move(fail)) {}

  Result<void> declare(std::size_t worker, Declaration declaration);
  // Gives the group; null: it is not declared here, or agreed already.
  Result<const GroupState*> agree(const wire::DeclareAgreed& agreed);
  Result<bool> ready(std::size_t worker, const shm::ReadyRecord& handed, TimeUs now_us);
  // A worker ends a generation before its plan does. Only the leader must know; nodes compare what their own workers say
  // with the leader's launches.
  Result<void> flush(std::size_t worker, const shm::FlushRecord& flush);
  Result<void> send_residuals(std::size_t worker, const shm::SendResidualsRecord& asked);
  // The worker uses the group no more.
  Result<void> release(std::size_t worker, const shm::ReleaseRecord& released);
  // All ranks have released it. What was handed over and not ordered is dropped, since nobody waits for it.
  void end(const wire::Released& released);
  Result<void> follow(const wire::PlanOrder& order);
  Result<SubCommTask> order(const wire::Launch& launch, std::uint64_t number, TimeUs now_us);

  [[nodiscard]] bool can_start(const SubCommTask& launch) const override;
  [[nodiscard]] Transfer transfer_of(const SubCommTask& launch) const override;
  [[nodiscard]] InProcessDriver::Records records_of(const SubCommTask& launch) const override;
  [[nodiscard]] bool is_merged(const SubCommTask& launch) const override;
  Result<void> finish(const SubCommTask& launch, const TransferDone& done) override;

  [[nodiscard]] const std::map<std::uint32_t, GroupState>& groups() const { return groups_; }
  // What messages of the leader are checked against.
  [[nodiscard]] std::optional<wire::NodeFacts::Group> facts(std::uint32_t id) const;
  [[nodiscard]] nlohmann::json status() const;

 private:
  [[nodiscard]] Gradients* agreed(std::uint32_t id);  // null: not agreed, or ended
  void ask_for_arenas(std::uint32_t id);
  void forget_if_done(std::uint32_t id);

  const Membership& members_;
  LeaderPort& leader_;
  SchedulerPort* const scheduler_;
  const std::size_t links_;
  const std::function<void(const Error&)> fail_;
  std::map<std::uint32_t, GroupState> groups_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // gone: an arena that comes now is for nobody
};

}  // namespace deft::daemon
