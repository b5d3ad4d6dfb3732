// Prophet: backward produces gradients in steps; a block fills the time until something more urgent is produced.
#include "core/sched/block_scheduler.h"
#include "core/sched/policies.h"

namespace deft::sched {

Result<std::unique_ptr<Scheduler>> make_prophet(const Setup& setup) {
  BlockScheduler::Rules rules{{}, setup.partition_bytes, false, false};
  for (const auto& bucket : setup.buckets) rules.ranks.push_back(bucket.forward_position);
  return std::make_unique<BlockScheduler>(setup, std::move(rules));
}

}  // namespace deft::sched
