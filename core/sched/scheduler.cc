#include "core/sched/scheduler.h"

#include "core/base/policy_traits.h"
#include "core/base/text.h"
#include "core/model/buckets.h"
#include "core/sched/link_board.h"
#include "core/sched/policies.h"

namespace deft::sched {
namespace {

Result<std::unique_ptr<Scheduler>> make(PolicyId policy, const Setup& setup) {
  switch (policy) {
    case PolicyId::kFifo: return make_fifo(setup);
    case PolicyId::kMgwfbp: return make_mgwfbp(setup);
    case PolicyId::kMergeComp: return make_mergecomp(setup);
    case PolicyId::kP3: return make_p3(setup);
    case PolicyId::kByteScheduler: return make_bytescheduler(setup);
    case PolicyId::kProphet: return make_prophet(setup);
    case PolicyId::kUsByte: return make_usbyte(setup);
    case PolicyId::kDear: return make_dear(setup);
    case PolicyId::kKnapsackPaper: return fail(ErrorKind::kInvalid, "only the simulator runs policy knapsack-paper");
    case PolicyId::kKnapsack: return make_knapsack(setup);
    case PolicyId::kAuto: return make_switching(setup);
  }
  return fail(ErrorKind::kInternal, "a policy of the table has no scheduler");
}

}  // namespace

Result<void> Scheduler::check_change(const SettingsChange& change) const {
  const std::string wanted =
      joined(change.options(), ", ", [](const auto& option) { return option.first + " = " + option.second; });
  return fail(ErrorKind::kInvalid, "this job cannot change while it runs, because its updates may be delayed",
              "start the job with a flag file (DEFT_FLAG_FILE) that says " + wanted);
}

Result<void> check_setup(const Setup& setup) {
  if (setup.buckets.empty()) return fail(ErrorKind::kInvalid, "there are no buckets to schedule");
  if (setup.links.empty()) return fail(ErrorKind::kInvalid, "there are no links to schedule on");
  for (std::size_t i = 0; i < setup.buckets.size(); ++i)
    if (setup.buckets[i].bytes == 0)
      return fail(ErrorKind::kInvalid, "bucket " + std::to_string(i) + " '" + setup.buckets[i].name + "' is empty");
  for (const auto& link : setup.links)
    if (!is_sane(link))
      return fail(ErrorKind::kInvalid, "link '" + link.name + "' has an impossible latency or throughput",
                  "the latency must be 0 or more, the throughput more than 0, both finite");
  if (setup.partition_bytes < model::kPartAlignBytes)
    return fail(ErrorKind::kInvalid, "partition_bytes is " + std::to_string(setup.partition_bytes),
                "give at least " + std::to_string(model::kPartAlignBytes));
  return {};
}

Result<std::unique_ptr<Scheduler>> make_scheduler(const Setup& setup) {
  if (auto ok = check_setup(setup); !ok) return tl::unexpected(ok.error());
  if (const PolicyTraits* const traits = find_policy(setup.policy)) return make(traits->id, setup);
  return fail(ErrorKind::kInvalid, "unknown policy '" + setup.policy + "'",
              "one of " + joined(kPolicyTraits, " ", &PolicyTraits::name));
}

}  // namespace deft::sched
