// WFBP: buckets go in the order in which backward makes them ready.
#include <algorithm>
#include <limits>

#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

// On one link a bucket is one launch, as cutting it would only cost. On several it is cut so that they share it.
class Fifo final : public QueueScheduler {
 public:
  explicit Fifo(const Setup& setup) : QueueScheduler(setup, rules(setup)) {}

 private:
  static Rules rules(const Setup& setup) {
    const std::uint64_t part =
        setup.links.size() == 1 ? std::numeric_limits<std::uint64_t>::max() : setup.partition_bytes;
    // Two launches wait behind the one that runs, so that the link always has the next one while the order after it travels.
    std::uint64_t largest = 0;
    for (const auto& bucket : setup.buckets) largest = std::max(largest, std::min(bucket.bytes, part));
    return {{part}, {std::max(3 * largest, setup.credit_bytes)}, false, true};
  }
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_fifo(const Setup& setup) { return std::make_unique<Fifo>(setup); }

}  // namespace deft::sched
