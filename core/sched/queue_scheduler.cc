#include "core/sched/queue_scheduler.h"

#include <algorithm>
#include <limits>

#include "core/model/parts.h"

namespace deft::sched {

QueueScheduler::QueueScheduler(const Setup& setup, const Rules& rules)
    : SynchronousScheduler(setup, rules.window), parts_(queue_, board_, rules) {}

// On one link a bucket is one launch, as cutting it would only cost. On several it is cut so that they share it; on slow
// ones finer, as one of them idles at the end for up to the time of a part.
QueueScheduler::Rules QueueScheduler::in_order(const Setup& setup, std::uint64_t largest_bytes) {
  const SizeLimit part = setup.links.size() == 1 ? SizeLimit{std::numeric_limits<std::uint64_t>::max()}
                                                 : short_parts(setup.partition_bytes);
  // Two launches wait behind the one that runs, so that the link always has the next one while the order after it travels.
  return {part, {std::max(3 * std::min(largest_bytes, part.bytes), setup.credit_bytes)}, false, true};
}

void QueueScheduler::bucket_ready(model::BucketIndex index, std::uint64_t step, TimeUs) {
  const model::Bucket& b = bucket(index);
  enqueue(index, step, parts_.by_priority() ? b.forward_position : 0, model::even_part_bytes(b.bytes, part_limit()));
}

std::vector<Launch> QueueScheduler::take_launches(TimeUs now_us) {
  auto launches = parts_.take(now_us);
  for (Launch& launch : launches) send(launch, now_us);
  return launches;
}

}  // namespace deft::sched
