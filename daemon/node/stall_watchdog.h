// Finds out who is late: watches the duties of the workers of a node, and those of the leader towards them.
//
// A worker that lives but owes something is reported after settings.stall_warning_us() and again at that interval; after
// stall_timeout it ends the job. What can never come, because its rank has left, ends the job after a short grace.
//
//   if (auto ok = watchdog.check(now_us); !ok) fail_job(ok.error());     // with every heartbeat
//   if (auto ok = watchdog.check_left(now_us); !ok) ...                  // instead, once all workers of the node have left
//   watchdog.answer(waiting, now_us);                                    // on the leader's node: another node waits
//   watchdog.note(stalled, now_us);                                      // the leader told all nodes of a stall
//
// Reads the other parts of the job, changes none. Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/node/collective_table.h"
#include "daemon/node/gradient_groups.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"

namespace deft::daemon {

class StallWatchdog {
 public:
  // All references outlive this object.
  StallWatchdog(const Membership& members, std::shared_ptr<const View> view, const GradientGroups& groups,
                const CollectiveTable& collectives, LeaderPort& leader)
      : members_(members), view_(std::move(view)), groups_(groups), collectives_(collectives), leader_(leader) {}

  // An error ends the job: it names the rank that owes, and what.
  Result<void> check(TimeUs now_us);
  // All workers here have left: an error if one of them owes gradients that the leader has ordered, because other nodes wait for them.
  Result<void> check_left(TimeUs now_us);
  // Another node waits for a launch. Reports the local workers that owe its gradients; errors as above.
  Result<void> answer(const wire::Waiting& waiting, TimeUs now_us);
  // Other nodes wait for a declaration or a collective. Likewise, if no local worker has come to it: check() does not know of it.
  Result<void> answer(const wire::Late& late);
  void note(const wire::Stalled& stalled, TimeUs now_us);
  void forget(std::uint32_t group);             // all ranks have released it
  [[nodiscard]] nlohmann::json status() const;  // stalls of the last moments

 private:
  [[nodiscard]] TimeUs grace_us() const;
  Result<void> check_declarations(TimeUs now_us);
  Result<void> check_local_declarations(std::uint32_t id, const GradientGroups::GroupState& group, TimeUs now_us);
  Result<void> check_gradients(TimeUs now_us);
  Result<void> check_order(std::uint32_t id, const Gradients& gradients, TimeUs now_us);
  Result<void> check_collectives(TimeUs now_us);
  Result<void> judge(const GradientGroups::GroupState& group, const Owed& owed, TimeUs now_us);
  void report(wire::Stalled stalled, TimeUs now_us);

  struct Stall {
    wire::Stalled stalled;  // as the leader told it last
    bool told = false;      // by the leader
    TimeUs reported_us = 0;
  };

  const Membership& members_;
  std::shared_ptr<const View> view_;
  const GradientGroups& groups_;
  const CollectiveTable& collectives_;
  LeaderPort& leader_;
  std::map<std::pair<std::uint32_t, std::string>, Stall> stalls_;  // by rank and name
  struct Asked {                                                   // by another node, for a bucket that is not ordered
    std::uint64_t generation = 0;
    TimeUs since_us = 0;
  };
  std::map<std::pair<std::uint32_t, model::BucketIndex>, Asked> asked_;  // by group and bucket
  std::map<std::uint32_t, TimeUs> undeclared_since_;                     // by group
};

}  // namespace deft::daemon
