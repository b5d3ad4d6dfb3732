// The leader's changes of plan: telling all nodes from which step on which plan decides, and why.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "core/base/policy_traits.h"
#include "daemon/leader/leader.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kPlansShown = 8;

nlohmann::json summary(std::uint32_t group, std::uint64_t epoch, const sched::PlanSwitch& change) {
  const model::Plan& plan = change.plan;
  nlohmann::json links = nlohmann::json::array();
  for (const auto& link : change.links) links.push_back({{"bytes_per_us", link.bytes_per_us}});
  return {{"group", group},
          {"epoch", epoch},
          {"from_step", change.step},
          {"period_steps", plan.period_steps},
          {"cycle", model::to_text(model::cycles_of(plan))},  // as the option plan takes it
          {"updates_per_step", plan.updates_per_step()},
          {"stale_share", plan.stale_share()},
          {"max_staleness_steps", plan.max_staleness()},
          {"max_merged_steps", plan.max_merged()},
          {"step_us", plan.step_us},
          {"compute_us", plan.compute_us},
          {"links", links},
          {"reason", change.reason}};
}

// "0-3 4 5-9", of so many buckets.
std::string describe_groups(const std::vector<model::BucketIndex>& starts, std::size_t buckets) {
  constexpr std::size_t kMostShown = 64;
  std::string text;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (i == kMostShown) return text + " ...";
    const std::size_t last = (i + 1 < starts.size() ? starts[i + 1] : buckets) - 1;
    text += (i == 0 ? "" : " ") + std::to_string(starts[i]);
    if (last > starts[i]) text += "-" + std::to_string(last);
  }
  return text;
}

}  // namespace

plan::Limits Leader::limits_of(const wire::Declare& declare) const {
  plan::Limits limits = plan::training_limits();
  const Config& options = settings_.options;
  limits.max_staleness_steps = static_cast<std::uint32_t>(options.integer("max_staleness_steps"));
  limits.max_merged_steps = static_cast<std::uint32_t>(options.integer("max_merged_steps"));
  limits.stale_share = static_cast<double>(options.integer("max_stale_percent")) / 100;
  limits.set_slots(declare.slots);
  return limits;
}

// Only the knapsack's own plans that may delay something are judged.
std::shared_ptr<PlanPreserver> Leader::make_preserver(const plan::Limits& limits) const {
  if (settings_.options.text("preserver") == "off" || settings_.plan ||
      !find_policy(settings_.policy)->delays_updates || limits.max_staleness_steps == 0)
    return nullptr;
  return std::make_shared<PlanPreserver>(world_, members_.size(), settings_.options.number("preserver_epsilon"),
                                         settings_.timeout_us / 10);
}

void Leader::on_statistics(std::size_t node, const wire::GradientStatistics& statistics) {
  const auto group = groups_.find(statistics.group);
  if (group != groups_.end() && group->second.preserver) group->second.preserver->take(node, statistics);
}

void Leader::on_step_time(Member& member, const wire::StepTime& time) {
  if (!std::isfinite(time.us) || time.us < 0) return;
  member.step_us = time.us;
  double slowest_us = 0;
  for (const Member& each : members_) slowest_us = std::max(slowest_us, each.step_us);
  for (auto& [id, group] : groups_)
    if (group.scheduler) group.scheduler->slowest_step_measured(slowest_us);
}

void Leader::order_plan(std::uint32_t id) {
  Group& group = groups_.at(id);
  const auto change = group.scheduler->take_switch();
  if (!change) return;
  model::follow(group.schedules, change->step, model::cycles_of(change->plan));
  group.plans.push_back(summary(id, ++group.epoch, *change));
  if (change->decision && group.preserver) {
    group.plans.back()["judgement"] = to_json(*change->decision);
    group.plans.back()["judgement"]["statistics"] = group.preserver->statistics();
  }
  if (group.plans.size() > kPlansShown) group.plans.erase(group.plans.begin());
  LOG(INFO) << "[" << job_ << "] plan " << group.epoch << " from step " << change->step << " on, because of "
            << change->reason << ": " << group.plans.back().dump();
  broadcast(wire::PlanOrder{id, group.epoch, change->step, change->plan, change->reason});
}

void Leader::tell_fusion(std::uint32_t id) {
  Group& group = groups_.at(id);
  const auto change = group.scheduler->take_fusion();
  if (!change) return;
  const std::size_t buckets = group.schedules.size();
  const std::string groups = describe_groups(change->starts, buckets);
  group.merging = {{"group", id},        {"from_step", change->step},
                   {"buckets", buckets}, {"transfers", change->starts.size()},
                   {"groups", groups},   {"reason", change->reason}};
  LOG(INFO) << "[" << job_ << "] merged " << buckets << " buckets into " << change->starts.size()
            << " transfers from step " << change->step << " on, because of " << change->reason << ": " << groups;
}

Result<void> Leader::flushed(std::uint32_t id, std::uint64_t step) {
  if (state_ != State::kRunning) return {};
  Group& group = groups_.at(id);
  const std::uint64_t ahead = group.declared.front()->slots + 1;
  if (step == 0 || group.schedules.empty() ||
      group.schedules.front().of_step(step - 1).generation > group.newest + ahead)
    return fail(ErrorKind::kViolation, "a flush before step " + std::to_string(step) + ", which is far ahead");
  model::cut(group.schedules, step);
  group.scheduler->flushed(step, MonotonicClock::now());
  pump(id);
  return {};
}

}  // namespace deft::daemon
