#include "daemon/node/leader_messages.h"

#include <glog/logging.h>

#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

bool runs(const std::unique_ptr<JobParts>& parts, const Membership& members) {
  return parts && members.state() == JobState::kRunning;
}

Result<void> launch(JobParts& parts, const wire::LaunchOrder& order) {
  const TimeUs now_us = parts.clock.now_us();
  std::uint64_t number = order.first;
  for (const auto& launch : order.launches) {
    if (auto ok = parts.links.take_number(number); !ok) return ok;
    auto task = parts.groups.order(launch, number, now_us);
    if (!task) return tl::unexpected(task.error());
    parts.recorder.ordered(launch, number++, MonotonicClock::now());
    parts.links.push(launch.link, std::move(*task));
  }
  return {};
}

}  // namespace

void LeaderMessages::fail_unless(const Result<void>& ok) {
  if (ok) return;
  const std::string& leader = members_.identity().leader;
  control_.fail(ok.error().in("following the leader" + (leader.empty() ? "" : " at " + leader) + ", on " + host_));
}

void LeaderMessages::operator()(const wire::Begin& /*message*/) { control_.begin(); }

void LeaderMessages::operator()(const wire::DeclareAgreed& message) {
  if (!runs(parts_, members_)) return;
  auto agreed = parts_->groups.agree(message);
  if (!agreed) return fail_unless(tl::unexpected(agreed.error()));
  if (*agreed != nullptr)
    parts_->recorder.declared(message.group, (*agreed)->declared.front()->name, *(*agreed)->gradients);
}

void LeaderMessages::operator()(const wire::LaunchOrder& message) {
  if (!runs(parts_, members_)) return;
  const auto ok = launch(*parts_, message);
  if (!ok) return fail_unless(ok);
  parts_->links.pump();
}

void LeaderMessages::operator()(const wire::PlanOrder& message) {
  if (runs(parts_, members_)) fail_unless(parts_->groups.follow(message));
}

void LeaderMessages::operator()(const wire::CollectiveStart& message) {
  if (!runs(parts_, members_)) return;
  if (auto ok = parts_->links.take_number(message.number); !ok) return fail_unless(ok);
  auto task = parts_->collectives.start(message);
  if (!task) return fail_unless(tl::unexpected(task.error()));
  parts_->links.push(message.link, std::move(*task));
  parts_->links.pump();
}

void LeaderMessages::operator()(const wire::CollectiveFailed& message) {
  if (runs(parts_, members_)) parts_->collectives.fail(message);
}

void LeaderMessages::operator()(wire::StoreValue message) {
  if (parts_) parts_->store->arrived(std::move(message));
}

void LeaderMessages::operator()(const wire::LinkStop& message) {
  if (!runs(parts_, members_)) return;
  parts_->recovery.stop(message);
  parts_->await_stopped_links();
}

void LeaderMessages::operator()(const wire::LinkReplaced& message) {
  if (runs(parts_, members_)) fail_unless(parts_->recovery.replace(message));
}

void LeaderMessages::operator()(const wire::JobProgress& message) {
  if (parts_) parts_->recovery.release(message);
}

void LeaderMessages::operator()(const wire::Heartbeat& message) {
  if (!message.reply) return leader_.send(wire::Heartbeat{.reply = true});
  if (parts_) parts_->recorder.clock_answered(message.answered_us, message.sent_us, MonotonicClock::now());
}

void LeaderMessages::operator()(const wire::Stalled& message) {
  if (!parts_) return;
  parts_->watchdog.note(message, parts_->clock.now_us());
  parts_->recorder.stalled(MonotonicClock::now());
}

void LeaderMessages::operator()(const wire::TraceOrder& message) {
  if (!runs(parts_, members_)) return;
  parts_->recorder.obey(message, [job = about(members_.identity())](const Result<std::string>& done) {
    if (!done) LOG(ERROR) << job << "a trace that the leader wants: " << done.error().message();
  });
}

void LeaderMessages::operator()(const wire::Waiting& message) {
  if (runs(parts_, members_)) fail_unless(parts_->watchdog.answer(message, parts_->clock.now_us()));
}

void LeaderMessages::operator()(const wire::Late& message) {
  if (runs(parts_, members_)) fail_unless(parts_->watchdog.answer(message));
}

void LeaderMessages::operator()(const wire::Released& message) {
  if (!runs(parts_, members_)) return;
  parts_->measurements.forget(message.group);
  parts_->watchdog.forget(message.group);
  parts_->recorder.forget(message.group);
  parts_->groups.end(message);
}

std::size_t JobFacts::first_position() const { return parts_ ? parts_->view->first_position() : 0; }

std::vector<std::uint32_t> JobFacts::link_epochs() const {
  std::vector<std::uint32_t> epochs(links_, 0);
  if (parts_)
    for (std::size_t link = 0; link < links_; ++link) epochs[link] = parts_->links.queues()[link].outage.epoch;
  return epochs;
}

std::optional<wire::NodeFacts::Group> JobFacts::group(std::uint32_t id) const {
  return parts_ ? parts_->groups.facts(id) : std::nullopt;
}

std::optional<wire::NodeFacts::AskedCollective> JobFacts::collective(const std::string& name) const {
  return parts_ ? parts_->collectives.facts(name) : std::nullopt;
}

std::optional<std::size_t> JobFacts::keys_asked(std::uint64_t request) const {
  return parts_ ? parts_->store->keys_asked(request) : std::nullopt;
}

}  // namespace deft::daemon
