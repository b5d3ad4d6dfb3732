#include "core/sched/synchronous_scheduler.h"

#include <algorithm>
#include <tuple>

#include "core/base/policy_traits.h"
#include "core/model/buckets.h"

namespace deft::sched {

void SynchronousScheduler::enqueue(model::BucketIndex index, std::uint64_t step, std::uint32_t priority,
                                   std::uint64_t part_limit) {
  insert({step, priority, index, bucket(index).bytes, part_limit, 0, 0, bucket(index).uncut});
  update(index, step);
}

void SynchronousScheduler::enqueue_run(model::BucketIndex first, std::uint32_t count, std::uint64_t step,
                                       std::uint64_t part_limit) {
  std::uint64_t bytes = 0;
  bool uncut = false;
  for (model::BucketIndex index = first; index < first + count; ++index) {
    bytes += bucket(index).bytes;
    uncut |= bucket(index).uncut;
    update(index, step);
  }
  insert({step, 0, first, bytes, part_limit, 0, 0, uncut});
}

void SynchronousScheduler::insert(ReadyTask ready) {
  ready.skew = bucket(ready.bucket).offset % model::kPartAlignBytes;
  ready.part_bytes = model::even_part_bytes(ready.bytes + ready.skew, ready.uncut ? kNoLimit : ready.part_bytes);
  const auto goes_before = [](const ReadyTask& a, const ReadyTask& b) {
    return std::tie(a.generation, a.priority) < std::tie(b.generation, b.priority);
  };
  // Nearly always at one of the ends, where a deque inserts at no cost. At the back also nobody needs to look for the place.
  if (queue_.empty() || !goes_before(ready, queue_.back())) return queue_.push_back(ready);
  queue_.insert(std::upper_bound(queue_.begin(), queue_.end(), ready, goes_before), ready);
}

bool SynchronousScheduler::is_urgent_first(std::string_view policy) {
  const PolicyTraits* const traits = find_policy(policy);
  return traits != nullptr && traits->urgent_first;
}

void SynchronousScheduler::send(Launch& launch, TimeUs now_us) {
  launch.id = launches_++;
  if (launch.half == AllReduceHalf::kBoth) launch.half = half_of_launches();
  launch.codec = codec_;
  if (urgent_first_) launch.priority = bucket(launch.bucket).forward_position;
  board_.launch(launch, now_us);
}

}  // namespace deft::sched
