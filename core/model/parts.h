// How a bucket is cut into parts: of about equal size, at cache lines. A small part may overtake larger ones on its link.
//
//   for (std::uint64_t at = 0, part = even_part_bytes(bytes, 1 << 20); at < bytes; at += part) ...
#pragma once

#include <algorithm>
#include <cstdint>

namespace deft::model {

inline constexpr std::uint64_t kPartAlignBytes = 64;  // a whole number of elements of every type

// A transfer of at most so many bytes overtakes larger ones on a link that has a priority channel (core/link/link.h).
inline constexpr std::uint64_t kSmallBytes = 16 << 10;
constexpr bool is_small(std::uint64_t bytes) { return bytes <= kSmallBytes; }

// The size of all parts but the last. No part is larger than `limit`, and the last one is not much smaller than the others.
constexpr std::uint64_t even_part_bytes(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes <= limit) return bytes;
  const std::uint64_t unit_limit = std::max<std::uint64_t>(1, limit / kPartAlignBytes);
  const std::uint64_t units = (bytes + kPartAlignBytes - 1) / kPartAlignBytes;
  const std::uint64_t parts = (units + unit_limit - 1) / unit_limit;
  return (units + parts - 1) / parts * kPartAlignBytes;
}

}  // namespace deft::model
