// The collectives of a job on one node: the requests of its workers, the start by the leader, and the answer.
//
//   table.request(worker, request, now_us);   // the last local worker's sends COLLECTIVE_READY to the leader
//   auto task = table.start(message);         // COLLECTIVE_START, checked against the requests
//   table.finish(*task, done);                // OP_DONE to the workers
//   table.fail(message);                      // COLLECTIVE_FAILED: this collective's callers get its error, the job goes on
//
// A collective has a name that is the same on all ranks; a name may be used again once its collective is done. No I/O but
// through the ports. Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/node/launch_source.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class CollectiveTable final : public LaunchSource {
 public:
  struct OwedCollective {  // a collective that some local workers asked for, and others did not
    std::string name;
    TimeUs since_us = 0;
    std::vector<std::size_t> workers;  // by local index: they owe their request
  };

  // `members` and `leader` outlive this object.
  CollectiveTable(const Membership& members, LeaderPort& leader, std::shared_ptr<const View> view)
      : members_(members), leader_(leader), view_(std::move(view)) {}

  // kInvalid if the worker's collective of this name is still under way: only this call fails.
  Result<void> request(std::size_t worker, CollectiveRequest request, TimeUs now_us);
  // kViolation for what not all local workers asked for, what runs already, and a root or counts that do not fit: ends the job.
  Result<SubCommTask> start(const wire::CollectiveStart& message);
  void fail(const wire::CollectiveFailed& message);

  [[nodiscard]] bool can_start(const SubCommTask& /*launch*/) const override { return true; }
  [[nodiscard]] Transfer transfer_of(const SubCommTask& launch) const override;
  // An all-gather is a broadcast of each rank's block. Empty blocks are left out.
  [[nodiscard]] InProcessDriver::Records records_of(const SubCommTask& launch) const override;
  [[nodiscard]] bool is_merged(const SubCommTask& /*launch*/) const override { return false; }
  Result<void> finish(const SubCommTask& launch, const TransferDone& done) override;

  // Collectives that were first asked for before `before_us` and that local workers owe.
  [[nodiscard]] std::vector<OwedCollective> owed(TimeUs before_us) const;
  [[nodiscard]] bool has_asked(std::size_t worker, const std::string& name) const;
  // A collective that all local workers asked for before `before_us`, and that the leader has not started.
  [[nodiscard]] std::optional<std::string> unstarted(TimeUs before_us) const;
  // What messages of the leader are checked against.
  [[nodiscard]] std::optional<wire::NodeFacts::AskedCollective> facts(const std::string& name) const;

 private:
  struct CollectiveState {
    std::vector<std::optional<CollectiveRequest>> requests;  // by local index
    std::vector<std::uint64_t> counts;                       // of all ranks, node by node; once started
    bool started = false;
    TimeUs since_us = 0;
    [[nodiscard]] bool complete() const;
  };
  [[nodiscard]] wire::CollectiveSpec spec_of(std::size_t worker, const CollectiveRequest& request) const;

  const Membership& members_;
  LeaderPort& leader_;
  std::shared_ptr<const View> view_;
  std::map<std::string, CollectiveState> collectives_;
};

}  // namespace deft::daemon
