// The scheduling policies and what sets them apart, one row a policy. No other list of policies exists in Deft: options,
// bucketing, scheduler, leader, simulator and plugins all ask this table. A new policy is a row here, a file in core/sched,
// and a case in make_scheduler.
//
//   const PolicyTraits* traits = find_policy(settings.policy);
//   if (traits->delays_updates) ...
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace deft {

enum class PolicyId : std::uint8_t {
  kFifo,
  kMgwfbp,
  kMergeComp,
  kP3,
  kByteScheduler,
  kProphet,
  kUsByte,
  kDear,
  kKnapsackPaper,
  kKnapsack,
  kAuto,
};

// How a policy cuts gradients into buckets if no option says otherwise.
enum class OwnBucketing : std::uint8_t {
  kUniform,   // buckets of the option bucket_bytes
  kByTensor,  // a bucket for each tensor; small ones are fused
};

// The properties of one policy.
struct PolicyTraits {
  PolicyId id;
  std::string_view name;
  OwnBucketing bucketing;
  // The tensors that the next forward needs first are sent first, so that a link may let them overtake earlier launches.
  // Other policies keep the order of readiness, or the order of updates.
  bool urgent_first = false;
  // Other sizes of parts and credit change when it sends what. Of p3 hardly any size counts: its slices are as published.
  bool has_sizes = false;
  // An update may merge the gradients of several steps, or be applied some steps later.
  bool delays_updates = false;
  // Training gains if forward overlaps with communication; the overlap is on unless an option says otherwise.
  bool overlaps_forward = false;
  // Only the simulator runs the policy: it needs a whole profile before the first step.
  bool simulator_only = false;
};

// In the order in which tables and `deft simulate --policy all` list them.
// clang-format off
inline constexpr std::array kPolicyTraits = {
    PolicyTraits{.id = PolicyId::kFifo, .name = "fifo", .bucketing = OwnBucketing::kUniform},
    PolicyTraits{.id = PolicyId::kMgwfbp, .name = "mgwfbp", .bucketing = OwnBucketing::kByTensor},
    PolicyTraits{.id = PolicyId::kMergeComp, .name = "mergecomp", .bucketing = OwnBucketing::kByTensor},
    PolicyTraits{.id = PolicyId::kP3, .name = "p3", .bucketing = OwnBucketing::kByTensor, .urgent_first = true, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kByteScheduler, .name = "bytescheduler", .bucketing = OwnBucketing::kByTensor, .urgent_first = true, .has_sizes = true, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kProphet, .name = "prophet", .bucketing = OwnBucketing::kByTensor, .urgent_first = true, .has_sizes = true, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kUsByte, .name = "usbyte", .bucketing = OwnBucketing::kByTensor, .urgent_first = true, .has_sizes = true, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kDear, .name = "dear", .bucketing = OwnBucketing::kByTensor, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kKnapsackPaper, .name = "knapsack-paper", .bucketing = OwnBucketing::kUniform, .delays_updates = true, .simulator_only = true},
    PolicyTraits{.id = PolicyId::kKnapsack, .name = "knapsack", .bucketing = OwnBucketing::kByTensor, .delays_updates = true, .overlaps_forward = true},
    PolicyTraits{.id = PolicyId::kAuto, .name = "auto", .bucketing = OwnBucketing::kByTensor, .overlaps_forward = true},
};
// clang-format on

// True if every update of the policy is that of plain data-parallel training: all gradients of a step, before the next forward.
constexpr bool is_exact(const PolicyTraits& traits) { return !traits.delays_updates && !traits.simulator_only; }

// The row of the policy called `name`; nullptr if there is none.
constexpr const PolicyTraits* find_policy(std::string_view name) {
  for (const PolicyTraits& traits : kPolicyTraits)
    if (traits.name == name) return &traits;
  return nullptr;
}

}  // namespace deft
