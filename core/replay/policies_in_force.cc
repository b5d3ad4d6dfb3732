#include "core/replay/policies_in_force.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>

#include "core/base/policy_traits.h"

namespace deft::replay {
namespace {

using model::PolicyReason;

const PolicyTraits& traits_of(const trace::PolicyTrace& policy) {
  return *std::ranges::find(kPolicyTraits, static_cast<PolicyId>(policy.policy), &PolicyTraits::id);
}

std::string in_ms(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", us / 1000);
  return text;
}

// ": a step took 83.1 ms, and 90.2 ms before"; empty: it was not measured.
std::string comparison(const PolicyInForce& policy) {
  if (policy.before_us <= 0 || policy.after_us <= 0) return "";
  return ": a step took " + in_ms(policy.after_us) + ", and " + in_ms(policy.before_us) + " before";
}

// `before`: the policy that was in force until then; null if it is not known.
std::string describe_policy(const PolicyInForce& policy, const PolicyInForce* before) {
  const std::string name = to_text(policy), from = " from step " + std::to_string(policy.step) + " on";
  switch (policy.why) {
    case PolicyReason::kBegan: return name + ", with which the job began";
    case PolicyReason::kForecast: return name + from + ": the simulator expected it to be faster";
    case PolicyReason::kConfirmed:
      return name + " was confirmed at step " + std::to_string(policy.step) + comparison(policy);
    case PolicyReason::kNoBetter:
      return name + from + ", because " + (before != nullptr ? to_text(*before) : "what was tried") + " was no better" +
             comparison(policy);
    case PolicyReason::kKept: return name + from + ": the simulator expected no other policy to be faster";
    case PolicyReason::kUser: return name + from + ": the user set it";
    case PolicyReason::kLinkLost: return name + from + ": a link was lost, and the simulator expected it to be faster";
  }
  return name + from;
}

}  // namespace

std::vector<PolicyInForce> policies_in_force(const trace::NodeTrace& leader, const trace::TraceGroup& group) {
  std::map<std::uint64_t, PolicyInForce> by_step;  // a file may tell of one more than once
  for (const auto& record : leader.records) {
    if (record.kind() != trace::TraceKind::kPolicy) continue;
    const auto policy = record.as<trace::PolicyTrace>();
    if (policy.group != group.group) continue;
    by_step.insert_or_assign(policy.step,
                             PolicyInForce{.step = policy.step,
                                           .recorded_us = record.begin_us(),
                                           .choice = {std::string(traits_of(policy).name), policy.fused_bytes},
                                           .sizes = {policy.partition_bytes, policy.credit_bytes},
                                           .why = static_cast<PolicyReason>(policy.reason),
                                           .before_us = static_cast<double>(policy.before_us),
                                           .after_us = static_cast<double>(policy.after_us)});
  }
  std::vector<PolicyInForce> policies;
  for (auto& [step, policy] : by_step) policies.push_back(std::move(policy));
  return policies;
}

const PolicyInForce* in_force_at(const std::vector<PolicyInForce>& policies, std::uint64_t step) {
  const auto after = std::ranges::upper_bound(policies, step, {}, &PolicyInForce::step);
  return after == policies.begin() ? nullptr : &*std::prev(after);
}

const PolicyInForce* in_force_in_most(const std::vector<PolicyInForce>& policies,
                                      const std::vector<WorkerStep>& steps) {
  struct Count {
    const PolicyInForce* policy;
    std::size_t steps;
  };
  std::vector<Count> counts;
  for (const WorkerStep& step : steps) {
    const PolicyInForce* const policy = in_force_at(policies, step.number);
    if (policy == nullptr) continue;
    const auto known = std::ranges::find_if(counts, [&](const Count& count) { return count.policy->is_same(*policy); });
    if (known == counts.end())
      counts.push_back({policy, 1});
    else
      known->policy = policy, ++known->steps;
  }
  const PolicyInForce* most = nullptr;
  std::size_t most_steps = 0;
  for (const Count& count : counts)
    if (count.steps >= most_steps) most = count.policy, most_steps = count.steps;
  return most;
}

std::string to_text(const PolicyInForce& policy) {
  sched::PolicyChoice choice = policy.choice;
  const PolicyTraits* const traits = find_policy(choice.policy);
  if (traits != nullptr && traits->has_sizes) choice.sizes = policy.sizes;
  return sched::to_text(choice);
}

std::vector<std::string> decisions(const std::vector<PolicyInForce>& policies, const std::vector<WorkerStep>& steps) {
  std::vector<std::string> texts;
  if (steps.empty()) return texts;
  const PolicyInForce* const first = in_force_at(policies, steps.front().number);
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const PolicyInForce& policy = policies[i];
    if (policy.step > steps.back().number || (first != nullptr && policy.step < first->step)) continue;
    texts.push_back(describe_policy(policy, i > 0 ? &policies[i - 1] : nullptr));
  }
  return texts;
}

}  // namespace deft::replay
