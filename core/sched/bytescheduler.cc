// ByteScheduler: what the next forward needs first goes first, in parts, with a credit of bytes on each link.
#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

// Preemption happens between parts: the credit bounds how much that is already on its way an urgent part waits for. What
// counts is that time, so on slow links parts and credit shrink until two parts take about 20 ms.
constexpr double kPartUs = 10'000;

class ByteScheduler final : public QueueScheduler {
 public:
  explicit ByteScheduler(const Setup& setup)
      : QueueScheduler(setup, {setup.partition_bytes, setup.credit_bytes, true, false, kPartUs}) {}
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_bytescheduler(const Setup& setup) {
  return std::make_unique<ByteScheduler>(setup);
}

}  // namespace deft::sched
