#include "core/sched/scheduler.h"

#include <algorithm>
#include <array>

#include "core/sched/link_board.h"
#include "core/sched/parts.h"
#include "core/sched/policies.h"

namespace deft::sched {
namespace {

struct Policy {
  std::string_view name;
  Result<std::unique_ptr<Scheduler>> (*make)(const Setup& setup);
  bool urgent_first = false;
};

constexpr std::array kPolicies = {
    Policy{"fifo", make_fifo},
    Policy{"mgwfbp", make_mgwfbp},
    Policy{"p3", make_p3, true},
    Policy{"bytescheduler", make_bytescheduler, true},
    Policy{"prophet", make_prophet, true},
    Policy{"usbyte", make_usbyte, true},
    Policy{"knapsack-paper", make_knapsack_paper},
    Policy{"knapsack", make_knapsack},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kPolicies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kPolicies[i].name;
  return names;
}();

Result<void> check_profile(const Setup& setup) {
  if (!setup.profile) return {};
  if (auto ok = model::check_profile(*setup.profile); !ok) return tl::unexpected(ok.error().in("profile"));
  const auto& buckets = setup.profile->buckets;
  bool same = buckets.size() == setup.buckets.size() && setup.profile->links.size() == setup.links.size();
  for (std::size_t i = 0; same && i < buckets.size(); ++i)
    same = buckets[i].bytes == setup.buckets[buckets.size() - 1 - i].bytes;
  if (!same) return fail(ErrorKind::kMismatch, "the profile is not of these buckets and links");
  return {};
}

Result<void> check(const Setup& setup) {
  if (setup.buckets.empty()) return fail(ErrorKind::kInvalid, "there are no buckets to schedule");
  if (setup.links.empty()) return fail(ErrorKind::kInvalid, "there are no links to schedule on");
  for (std::size_t i = 0; i < setup.buckets.size(); ++i)
    if (setup.buckets[i].bytes == 0)
      return fail(ErrorKind::kInvalid, "bucket " + std::to_string(i) + " '" + setup.buckets[i].name + "' is empty");
  for (const auto& link : setup.links)
    if (!is_sane(link))
      return fail(ErrorKind::kInvalid, "link '" + link.name + "' has an impossible latency or throughput",
                  "the latency must be 0 or more, the throughput more than 0, both finite");
  if (setup.partition_bytes < kPartAlignBytes)
    return fail(ErrorKind::kInvalid, "partition_bytes is " + std::to_string(setup.partition_bytes),
                "give at least " + std::to_string(kPartAlignBytes));
  return check_profile(setup);
}

std::string known_policies() {
  std::string text;
  for (const auto name : kNames) text += (text.empty() ? "" : " ") + std::string(name);
  return text;
}

}  // namespace

std::span<const std::string_view> policy_names() { return kNames; }

bool is_urgent_first(std::string_view policy) {
  return std::ranges::any_of(kPolicies, [&](const Policy& p) { return p.name == policy && p.urgent_first; });
}

Result<std::unique_ptr<Scheduler>> make_scheduler(const Setup& setup) {
  if (auto ok = check(setup); !ok) return tl::unexpected(ok.error());
  for (const auto& policy : kPolicies)
    if (policy.name == setup.policy) return policy.make(setup);
  return fail(ErrorKind::kInvalid, "unknown policy '" + setup.policy + "'", "one of " + known_policies());
}

}  // namespace deft::sched
