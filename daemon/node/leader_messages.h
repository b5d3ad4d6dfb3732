// Brings each message of a job's leader to the part of the job that it is for, and has the facts against which messages are checked.
//
//   auto message = received.to_node(JobFacts(members, choice.specs.size(), parts.get()));   // checked
//   std::visit(messages, std::move(*message));
//
// Errors of the parts end the job, with the leader's address and this node's name. Reactor thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/node/job_control.h"
#include "daemon/node/job_parts.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class LeaderMessages {
 public:
  // `parts`: null until the job has a view. All references outlive this object.
  LeaderMessages(Membership& members, const std::unique_ptr<JobParts>& parts, LeaderPort& leader, JobControl& control,
                 std::string host)
      : members_(members), parts_(parts), leader_(leader), control_(control), host_(std::move(host)) {}

  void operator()(wire::Joined message) { control_.joined(std::move(message)); }
  void operator()(const wire::Begin& message);
  void operator()(const wire::DeclareAgreed& message);
  void operator()(const wire::LaunchOrder& message);
  void operator()(const wire::PlanOrder& message);
  void operator()(const wire::CollectiveStart& message);
  void operator()(const wire::CollectiveFailed& message);
  void operator()(wire::StoreValue message);
  void operator()(const wire::LinkStop& message);
  void operator()(const wire::LinkReplaced& message);
  void operator()(const wire::JobProgress& message);
  void operator()(const wire::Heartbeat& message);
  void operator()(const wire::Failure& message) { control_.end(message.error, false); }
  void operator()(const wire::Leave& message) { members_.mark_left(message.ranks); }
  void operator()(const wire::Stalled& message);
  void operator()(const wire::Waiting& message);
  void operator()(const wire::TraceOrder& message);
  void operator()(const wire::Late& message);
  void operator()(const wire::Released& message);

 private:
  void fail_unless(const Result<void>& ok);

  Membership& members_;
  const std::unique_ptr<JobParts>& parts_;
  LeaderPort& leader_;
  JobControl& control_;
  const std::string host_;
};

class JobFacts final : public wire::NodeFacts {
 public:
  // `links`: of this node. `parts`: null while there is no view. Both outlive this object.
  JobFacts(const Membership& members, std::size_t links, JobParts* parts)
      : members_(members), links_(links), parts_(parts) {}

  [[nodiscard]] std::uint32_t world() const override { return members_.identity().world; }
  [[nodiscard]] std::vector<std::uint32_t> local_ranks() const override { return members_.ranks(); }
  [[nodiscard]] std::size_t first_position() const override;
  [[nodiscard]] std::vector<std::uint32_t> link_epochs() const override;
  [[nodiscard]] std::uint64_t next_number() const override { return parts_ ? parts_->links.next_number() : 0; }
  [[nodiscard]] std::optional<Group> group(std::uint32_t id) const override;
  [[nodiscard]] std::optional<AskedCollective> collective(const std::string& name) const override;
  [[nodiscard]] std::optional<std::size_t> keys_asked(std::uint64_t request) const override;

 private:
  const Membership& members_;
  const std::size_t links_;
  JobParts* const parts_;
};

}  // namespace deft::daemon
