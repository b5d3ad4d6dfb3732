// US-Byte: unequal blocks. In backward a block of whole units fills the time until the next bucket; in forward each
// bucket's rest goes as one block. With a profile it also raises priorities where its model says that this is faster.
#include "core/sched/block_scheduler.h"
#include "core/sched/policies.h"
#include "core/sched/usbyte_model.h"

namespace deft::sched {

Result<std::unique_ptr<Scheduler>> make_usbyte(const Setup& setup) {
  BlockScheduler::Rules rules{{}, setup.partition_bytes, true, true};
  if (setup.profile) {
    const UsByteModel model = usbyte_model(setup);
    const auto ranks = raised_ranks(model);
    // Equal parts are one of the ways to cut: where the model likes them better, they are what it asks for.
    if (model.parts_us() < model.blocks(ranks).step_us) return make_bytescheduler(setup);
    rules.ranks.assign(ranks.rbegin(), ranks.rend());
  } else {
    for (const auto& bucket : setup.buckets) rules.ranks.push_back(bucket.forward_position);
  }
  return std::make_unique<BlockScheduler>(setup, std::move(rules));
}

}  // namespace deft::sched
