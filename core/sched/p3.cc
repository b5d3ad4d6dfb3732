// P3: priority by forward order in small slices, so that an urgent slice waits for little.
#include <algorithm>

#include "core/sched/policies.h"
#include "core/sched/queue_scheduler.h"

namespace deft::sched {
namespace {

constexpr std::uint64_t kSliceBytes = 40'000 * 4;  // as published: 40,000 parameters

// One slice runs and one waits behind it: enough to keep a link busy, and the flow control that the original lacks.
class P3 final : public QueueScheduler {
 public:
  explicit P3(const Setup& setup) : QueueScheduler(setup, rules(std::min(kSliceBytes, setup.partition_bytes))) {}

 private:
  static Rules rules(std::uint64_t slice) { return {{slice}, {2 * slice}, true, false}; }
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_p3(const Setup& setup) { return std::make_unique<P3>(setup); }

}  // namespace deft::sched
