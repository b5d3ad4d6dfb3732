// Limits for the bytes of one part, and for all parts in flight on a link. On slow links they shrink with the throughput.
//
//   const CreditRules rules = credit_rules(setup.partition_bytes, setup.credit_bytes);
//   rules.part.on_link(bytes_per_us);   // the largest part on a link of that throughput
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace deft::sched {

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();  // of bytes

// A limit of `bytes`. On a slow link the limit is as many bytes as the link carries in `time_us` (0: no limit of time), or in `latencies`
// of its latencies if they last longer, but at least `least_bytes`.
struct SizeLimit {
  std::uint64_t bytes = 0;
  double time_us = 0;
  std::uint64_t least_bytes = 0;
  double latencies = 0;

  [[nodiscard]] constexpr std::uint64_t on_link(double bytes_per_us, double latency_us = 0) const {
    if (time_us <= 0) return bytes;
    const double carried = bytes_per_us * std::max(time_us, latencies * latency_us);
    if (carried >= static_cast<double>(bytes)) return bytes;
    return std::min(bytes, std::max(least_bytes, static_cast<std::uint64_t>(carried)));
  }
};

// On slow links parts shrink until they take about 10 ms. They stay so large that starting a part costs little beside sending
// it.
inline constexpr double kShortPartUs = 10'000;
inline constexpr std::uint64_t kLeastShortPartBytes = 256 << 10;
constexpr SizeLimit short_parts(std::uint64_t partition_bytes) {
  return {partition_bytes, kShortPartUs, kLeastShortPartBytes};
}

// ByteScheduler's parts and credit. An urgent part can only overtake parts that are not in flight yet, so the credit bounds its
// wait. That wait is a time, so on slow links the credit shrinks to two short parts.
struct CreditRules {
  SizeLimit part;
  SizeLimit credit;
};
constexpr CreditRules credit_rules(std::uint64_t partition_bytes, std::uint64_t credit_bytes) {
  return {short_parts(partition_bytes), {credit_bytes, 2 * kShortPartUs, 2 * kLeastShortPartBytes}};
}

}  // namespace deft::sched
