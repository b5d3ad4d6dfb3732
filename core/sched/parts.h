// Cutting a bucket into parts of about equal size, on cache lines, and how large parts and what is on its way may be.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deft::sched {

inline constexpr std::uint64_t kPartAlignBytes = 64;  // a whole number of elements of every type

// What is no larger than this passes what is on its way on links that have an express way (core/link/link.h).
inline constexpr std::uint64_t kExpressBytes = 16 << 10;
constexpr bool passes_others(std::uint64_t bytes) { return bytes <= kExpressBytes; }

// The size of all parts but the last, so that no part is larger than `limit` and none is a sliver.
constexpr std::uint64_t even_part_bytes(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes <= limit) return bytes;
  const std::uint64_t unit_limit = std::max<std::uint64_t>(1, limit / kPartAlignBytes);
  const std::uint64_t units = (bytes + kPartAlignBytes - 1) / kPartAlignBytes;
  const std::uint64_t parts = (units + unit_limit - 1) / unit_limit;
  return (units + parts - 1) / parts * kPartAlignBytes;
}

// At most `bytes`; on a slow link at most what it carries in `time_us` (0: any), but not below `least_bytes`.
struct SizeLimit {
  std::uint64_t bytes = 0;
  double time_us = 0;
  std::uint64_t least_bytes = 0;

  [[nodiscard]] constexpr std::uint64_t on_link(double bytes_per_us) const {
    if (time_us <= 0) return bytes;
    const double carried = bytes_per_us * time_us;
    if (carried >= static_cast<double>(bytes)) return bytes;
    return std::min(bytes, std::max(least_bytes, static_cast<std::uint64_t>(carried)));
  }
};

// On slow links parts shrink until they take about 10 ms, but not to parts so small that what it costs to start one would
// show.
inline constexpr double kShortPartUs = 10'000;
inline constexpr std::uint64_t kLeastShortPartBytes = 256 << 10;
constexpr SizeLimit short_parts(std::uint64_t partition_bytes) {
  return {partition_bytes, kShortPartUs, kLeastShortPartBytes};
}

// ByteScheduler's parts and credit. Preemption happens between parts: the credit bounds how much that is already on its
// way an urgent part waits for. What counts is that time, so on slow links the credit shrinks to that of two short parts.
struct CreditRules {
  SizeLimit part;
  SizeLimit credit;
};
constexpr CreditRules credit_rules(std::uint64_t partition_bytes, std::uint64_t credit_bytes) {
  return {short_parts(partition_bytes), {credit_bytes, 2 * kShortPartUs, 2 * kLeastShortPartBytes}};
}

}  // namespace deft::sched
