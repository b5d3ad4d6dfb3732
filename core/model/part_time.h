// How long parts of buckets keep a link. The queue of launches cuts by these times, and the planner's timetables have no shorter
// parts.
//
//   part_us(link, compute_us) * link.bytes_per_us         // the bytes of a part on the wire
//   least_part_us(link, compute_us) * link.bytes_per_us   // if something more urgent is expected
//
// `compute_us` is that of a step; 0: it is not known.
#pragma once

#include "core/model/buckets.h"

namespace deft::model {

// A hundredth of a step, so that a more urgent part that nobody expected waits little. Longer if so short parts would cost too much.
double part_us(const LinkModel& link, double compute_us);

// A shorter part is not worth what it costs beside its bytes.
double least_part_us(const LinkModel& link, double compute_us);

}  // namespace deft::model
