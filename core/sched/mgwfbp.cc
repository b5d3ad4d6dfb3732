// MG-WFBP (Shi et al., INFOCOM 2019): buckets that were merged where waiting for the next gradient costs less than another
// start-up of the link. The merging is its bucketing (core/partition, `mgwfbp`); merged buckets go as they become ready.
#include "core/sched/policies.h"

namespace deft::sched {

Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup) { return make_fifo(setup); }

}  // namespace deft::sched
