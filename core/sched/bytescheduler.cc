// ByteScheduler: the tensors that the next forward needs first go first, in parts, with a credit of bytes on each link.
#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

class ByteScheduler final : public QueueScheduler {
 public:
  explicit ByteScheduler(const Setup& setup)
      : QueueScheduler(setup, rules(credit_rules(setup.partition_bytes, setup.credit_bytes))) {}

 private:
  static Rules rules(const CreditRules& sizes) { return {sizes.part, sizes.credit, true, false}; }
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_bytescheduler(const Setup& setup) {
  return std::make_unique<ByteScheduler>(setup);
}

}  // namespace deft::sched
