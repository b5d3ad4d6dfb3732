// Cutting a bucket into parts of about equal size, on cache lines.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deft::sched {

inline constexpr std::uint64_t kPartAlignBytes = 64;  // a whole number of elements of every type

// The size of all parts but the last, so that no part is larger than `limit` and none is a sliver.
constexpr std::uint64_t even_part_bytes(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes <= limit) return bytes;
  const std::uint64_t unit_limit = std::max<std::uint64_t>(1, limit / kPartAlignBytes);
  const std::uint64_t units = (bytes + kPartAlignBytes - 1) / kPartAlignBytes;
  const std::uint64_t parts = (units + unit_limit - 1) / unit_limit;
  return (units + parts - 1) / parts * kPartAlignBytes;
}

}  // namespace deft::sched
