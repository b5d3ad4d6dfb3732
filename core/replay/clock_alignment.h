// Maps a node's clock to the leader's clock, from questions and answers that were exchanged while a job ran.
//
//   auto map = align(samples, {begin_us, end_us}, bounds);   // of one node, whose records are from between these times
//   map->to_leader(record.begin_us());               // microseconds of the leader's clock
//   map->error_us                                    // the true time of a record may differ by so much
//
// Each sample bounds the difference of the clocks: the leader's clock was read after the question left, and before the answer
// came. Clocks also drift, by up to 100 ppm or so. So the map is a line, and the bounds are linear in its offset and its drift.
// The alignment is the line that keeps the largest distance from all bounds: a linear program of three variables. The distance is
// the least delay of a message, if the way to the leader and the way back have the same least delay. From inside, an asymmetric
// way cannot be told from an offset. So other lines obey all bounds, too. `error_us` is how far they go away from this one, at the first
// or the last record: lines differ most there. If no answer is near, only the drift that clocks can have bounds a line.
//
// Data that the node and the leader sent each other bounds the line, too: no RECV ended before its SEND began. Of many such bounds the
// tightest of each of some periods count, on either side of the line that answers give. They count only if that makes the error smaller. If
// they contradict the answers, the answers count.
//
// dPRO (section 4.2) minimises a sum of variances instead, with a maximum inside, which is not convex as printed.
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::replay {

struct ClockSample {
  TimeUs asked_us = 0;     // the node's clock
  TimeUs leader_us = 0;    // the leader's clock, between the question and the answer
  TimeUs answered_us = 0;  // the node's clock
};

// When the node's clock showed `node_us`, the leader's showed at least, or at most, `leader_us`.
struct ClockBound {
  TimeUs node_us = 0;
  TimeUs leader_us = 0;
  bool is_least = false;  // else at most
};

// When a node's records began and ended.
struct Interval {
  TimeUs begin_us = std::numeric_limits<TimeUs>::max(), end_us = 0;

  [[nodiscard]] bool overlaps(const Interval& other) const {
    return begin_us <= other.end_us && other.begin_us <= end_us;
  }
  [[nodiscard]] bool is_empty() const { return begin_us > end_us; }
};

struct ClockMap {
  TimeUs origin_us = 0;      // of the node's clock: where `offset_us` was taken
  TimeUs offset_us = 0;      // the leader's clock less the node's, at `origin_us`
  double correction_us = 0;  // the fraction that the solution adds to it
  double drift = 0;          // microseconds of offset a microsecond
  double error_us = 0;
  std::size_t samples = 0;
  std::size_t contradicting = 0;  // samples that were left out
  std::size_t bounds = 0;         // of data, that count

  [[nodiscard]] TimeUs to_leader(TimeUs node_us) const;
};

// kInvalid without a sample. Samples that contradict all others (a clock that jumped) are left out and counted. `records`: of the node's
// clock; if it is empty, the error is that at the origin.
Result<ClockMap> align(std::span<const ClockSample> samples, const Interval& records,
                       std::span<const ClockBound> bounds = {});

}  // namespace deft::replay
