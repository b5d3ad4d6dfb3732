#include "daemon/leader/launch_coordinator.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/base/policy_traits.h"
#include "core/sched/policy_chooser.h"
#include "daemon/base/log_lines.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kMostUntold = 64;  // policies that nobody takes

// Policies that delay updates follow plans, and stay.
std::optional<sched::PolicyChange> first_policy(const JobSettings& settings) {
  const PolicyTraits& traits = *find_policy(settings.policy);
  if (!is_exact(traits)) return std::nullopt;
  const bool is_chosen = traits.id == PolicyId::kAuto;
  return sched::PolicyChange{
      .choice = is_chosen ? sched::PolicyChooser::first_choice() : sched::PolicyChoice{.policy = settings.policy},
      .sizes = {settings.options.bytes("partition_bytes"), settings.options.bytes("credit_bytes")},
      .reason = "the job begins with it"};
}

// Each node declares its groups in the order of their numbers. So a number that was used, and has no group, was released.
Result<void> check_new_group(std::uint32_t id, std::uint32_t begun, std::size_t groups) {
  if (id < begun)
    return fail(ErrorKind::kViolation, "group " + std::to_string(id) + " was declared again after its release");
  if (groups >= wire::kMaxGroups)
    return fail(ErrorKind::kExhausted, "the job has " + std::to_string(groups) + " groups of gradients at once",
                "let go of optimizers that are not used any more");
  return {};
}

}  // namespace

Result<void> LaunchCoordinator::declare(std::size_t node, wire::Declare declare,
                                        const GroupCoordinator::NameOfNode& name_of) {
  if (!groups_.contains(declare.group))
    if (auto ok = check_new_group(declare.group, lives_.begun, groups_.size()); !ok) return ok;
  lives_.begun = std::max(lives_.begun, declare.group + 1);
  const auto [it, added] =
      groups_.try_emplace(declare.group, GroupCoordinator::Identity{size_.job, declare.group, size_.world, size_.user},
                          settings_, codecs_, offload_);
  const std::string name = declare.name + " (group " + std::to_string(declare.group) + ")";  // names may repeat
  if (!it->second.agreed()) undeclared_.came(name, node, size_.nodes, clock_.now_us(), declare.group);
  auto agreed = it->second.declare(node, std::move(declare), links_, name_of);
  if (!agreed) return tl::unexpected(agreed.error());
  if (!*agreed) return {};
  undeclared_.done(name);
  if (auto first = first_policy(settings_)) decided_.policies.push_back({it->first, *std::move(first)});
  to_all_(std::move(**agreed));
  if (decided_.settings.options().empty()) return {};
  if (auto ok = it->second.scheduler().change_settings(decided_.settings); !ok)
    LOG(WARNING) << about(size_.job) << "group " << name
                 << " keeps the settings that the job began with: " << ok.error().message();
  return {};
}

Result<void> LaunchCoordinator::release(std::size_t node, std::uint32_t id) {
  const auto group = groups_.find(id);
  if (!running_ || group == groups_.end() || !group->second.agreed()) return {};
  std::vector<bool>& released = lives_.released_by_node[id];
  released.resize(size_.nodes);
  if (released[node]) return fail(ErrorKind::kViolation, "a node has released group " + std::to_string(id) + " twice");
  released[node] = true;
  if (std::ranges::find(released, false) != released.end()) return {};
  lives_.released_by_node.erase(id);
  std::erase_if(decided_.policies, [id](const GroupPolicy& policy) { return policy.group == id; });
  groups_.erase(group);
  to_all_(wire::Released{id});
  return {};
}

void LaunchCoordinator::bucket_ready(std::uint32_t id, model::BucketIndex bucket, std::uint64_t generation) {
  if (!running_) return;
  GroupCoordinator& group = groups_.at(id);
  group.bucket_ready(bucket, generation, clock_.now_us());
  pump(id, group);
}

void LaunchCoordinator::stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) {
  if (!running_) return;
  for (auto& [id, group] : groups_) {
    if (!group.agreed()) continue;
    group.stage_began(stage, step, clock_.now_us(), waited_us);
    pump(id, group);
  }
}

Result<void> LaunchCoordinator::flushed(std::uint32_t id, std::uint64_t step) {
  if (!running_) return {};
  GroupCoordinator& group = groups_.at(id);
  if (auto ok = group.flushed(step, clock_.now_us()); !ok) return ok;
  pump(id, group);
  return {};
}

Result<void> LaunchCoordinator::residuals_asked_for(std::uint32_t id, std::uint64_t step) {
  return running_ ? groups_.at(id).residuals_asked_for(step) : Result<void>{};
}

void LaunchCoordinator::launch_finished(std::uint64_t number, std::optional<TimeUs> link_us, bool overlapped) {
  if (!running_) return;
  for (auto& [id, group] : groups_) {
    const sched::Launch* const launch = group.outstanding(number);
    if (launch == nullptr) continue;
    const model::LinkIndex link = launch->link;
    const auto bytes = group.measured_bytes(*launch);
    if (link_us && bytes && links_.measure(link, *bytes, *link_us, overlapped))
      for (auto& [other_id, other] : groups_)
        if (other.agreed()) other.scheduler().link_measured(link, links_.cost(link));
    group.finished(number, clock_.now_us());
    return pump(id, group);
  }
}

// A plan goes before the launches that depend on it.
void LaunchCoordinator::pump(std::uint32_t id, GroupCoordinator& group) {
  for (auto& change : group.take_policy_changes())
    if (decided_.policies.size() < kMostUntold) decided_.policies.push_back({id, std::move(change)});
  if (auto plan = group.take_plan()) to_all_(std::move(*plan));
  if (auto order = group.take_launches(links_, clock_.now_us())) to_all_(std::move(*order));
}

void LaunchCoordinator::take_statistics(std::size_t node, const wire::GradientStatistics& statistics) {
  const auto group = groups_.find(statistics.group);
  if (group != groups_.end()) group->second.take_statistics(node, statistics);
}

void LaunchCoordinator::slowest_step_measured(double us) {
  for (auto& [id, group] : groups_)
    if (group.agreed()) group.scheduler().slowest_step_measured(us);
}

void LaunchCoordinator::codecs_measured(std::size_t node, std::span<const wire::CodecTime> times) {
  if (!codecs_.take(node, times)) return;
  for (auto& [id, group] : groups_)
    if (group.agreed()) group.scheduler().codecs_measured(codecs_.prices());
}

void LaunchCoordinator::link_lost(model::LinkIndex link) {
  for (auto& [id, group] : groups_) {
    if (!group.agreed()) continue;
    group.scheduler().link_lost(link);
    pump(id, group);
  }
}

// One group may refuse what others accept, because its tensors have codecs of their own. So all are asked first.
Result<void> LaunchCoordinator::change_settings(const sched::SettingsChange& change) {
  bool any = false;
  for (auto& [id, group] : groups_) {
    if (!group.agreed()) continue;
    if (auto ok = group.scheduler().check_change(change); !ok) return ok;
    any = true;
  }
  if (!any) return fail(ErrorKind::kUnavailable, "the job has declared no gradients yet", "try it again");
  for (auto& [id, group] : groups_)
    if (group.agreed())
      if (auto ok = group.scheduler().change_settings(change); !ok) return ok;
  decided_.settings = change.after(decided_.settings);
  return {};
}

std::size_t LaunchCoordinator::buckets(std::uint32_t id) const {
  const auto group = groups_.find(id);
  return group == groups_.end() ? 0 : group->second.buckets();
}

void LaunchCoordinator::add_status(nlohmann::json& json) const {
  std::size_t outstanding = 0;
  for (const auto& [id, group] : groups_) {
    group.add_status(json);
    outstanding += group.outstanding_launches();
  }
  json["outstanding"] = outstanding;
  json["codecs"] = codecs_.status();
  const auto sizes = decided_.settings.sizes_after(
      {settings_.options.bytes("partition_bytes"), settings_.options.bytes("credit_bytes")});
  json["settings"] = {{"policy", decided_.settings.policy.value_or(settings_.policy)},
                      {"partition_bytes", sizes.partition_bytes},
                      {"credit_bytes", sizes.credit_bytes}};
}

}  // namespace deft::daemon
