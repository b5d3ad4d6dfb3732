// What a link carries at once after a pause, if its NIC is shaped by a token bucket: it earns time while it is idle, up to its burst.
//
//   TokenBucket tokens(link.burst_bytes / *link.bytes_per_us);
//   tokens.busy(now_us);
//   left_us -= tokens.take(bytes_us);   // these bytes need no time
//   tokens.idle(end_us);
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

namespace deft::sim {

class TokenBucket {
 public:
  // In virtual microseconds of the link. It begins full.
  explicit TokenBucket(double burst_us) : burst_us_(burst_us), earned_us_(burst_us) {}

  void busy(double now_us) {
    if (const auto since_us = std::exchange(idle_since_us_, std::nullopt))
      earned_us_ = std::min(burst_us_, earned_us_ + now_us - *since_us);
  }
  void idle(double now_us) { idle_since_us_ = now_us; }
  // What it saves of so much time.
  double take(double us) {
    const double saved_us = std::min(us, earned_us_);
    earned_us_ -= saved_us;
    return saved_us;
  }

 private:
  double burst_us_;
  double earned_us_;
  std::optional<double> idle_since_us_ = 0;
};

}  // namespace deft::sim
