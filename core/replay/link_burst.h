// How many bytes a link of a traced job carries at once after a pause. The NICs of many clouds, and of the lab, are shaped by a token
// bucket: while they are idle they earn bytes, up to a burst, which then need hardly any time.
//
//   const double burst_bytes = burst_of(periods, arrivals_of(job, link, periods));
//   const auto slow = without_burst(periods, burst_bytes);   // each period has only the bytes that took time
//
// Without it a link whose parts are few and short seems to be faster than it is for many. If all periods are alike, only what came within
// them tells the burst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

// A time in which a link was busy without a pause.
struct BusyPeriod {
  TimeUs begin_us = 0;
  double us = 0, bytes = 0, parts = 0;
};

// So many bytes of a period had come after so long.
struct Arrival {
  std::size_t period = 0;
  double us = 0, bytes = 0;
};

// By what nodes received. Empty if the traces do not tell. The periods are in order.
std::vector<Arrival> arrivals_of(const JobTrace& job, std::uint16_t link, const std::vector<BusyPeriod>& periods);

// 0: nothing speaks for a burst.
double burst_of(const std::vector<BusyPeriod>& periods, const std::vector<Arrival>& arrivals);

std::vector<BusyPeriod> without_burst(std::vector<BusyPeriod> periods, double burst_bytes);

}  // namespace deft::replay
