#include "core/sched/synchronous_scheduler.h"

#include <algorithm>
#include <tuple>

namespace deft::sched {

void SynchronousScheduler::enqueue(model::BucketIndex index, std::uint64_t step, std::uint32_t urgency,
                                   std::uint64_t part_bytes) {
  const Ready ready{step, urgency, index, bucket(index).bytes, part_bytes};
  // Nearly always at one of the ends, where a deque inserts at no cost.
  const auto place = std::upper_bound(queue_.begin(), queue_.end(), ready, [](const Ready& a, const Ready& b) {
    return std::tie(a.generation, a.urgency) < std::tie(b.generation, b.urgency);
  });
  queue_.insert(place, ready);
  updates_.push_back({index, step, step, step, step + 1});
}

void SynchronousScheduler::send(Launch& launch, TimeUs now_us) {
  launch.id = launches_++;
  board_.launch(launch, now_us);
}

}  // namespace deft::sched
