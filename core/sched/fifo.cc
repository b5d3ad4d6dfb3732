// WFBP: buckets go in the order in which backward makes them ready. With Setup::fused_bytes neighbours go as one launch.
#include <algorithm>

#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"
#include "core/sched/run_scheduler.h"

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

Result<std::unique_ptr<Scheduler>> make_fifo(const Setup& setup) {
  if (setup.fused_bytes == 0) return std::make_unique<Fifo>(setup);
  return std::make_unique<RunScheduler>(setup, runs_as_ddp(setup.buckets, setup.fused_bytes));
}

}  // namespace deft::sched
