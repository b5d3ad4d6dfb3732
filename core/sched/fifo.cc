// WFBP: buckets go in the order in which backward makes them ready.
#include <algorithm>

#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

class Fifo final : public QueueScheduler {
 public:
  explicit Fifo(const Setup& setup) : QueueScheduler(setup, in_order(setup, largest(setup))) {}

 private:
  static std::uint64_t largest(const Setup& setup) {
    std::uint64_t bytes = 0;
    for (const auto& bucket : setup.buckets) bytes = std::max(bytes, bucket.bytes);
    return bytes;
  }
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_fifo(const Setup& setup) { return std::make_unique<Fifo>(setup); }

}  // namespace deft::sched
