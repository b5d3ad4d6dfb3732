// How a reduction cuts its data: each node owns a slice, and reduces it for all in segments, one a round. A segment fits a slot
// of the peers.
//
//   const std::size_t granule = granule_of(element_bytes, block);
//   const Slices slices = cut_slices(count, granule, nodes, slot_bytes / element_bytes);
//   for (round < slices.rounds) send_to(owner, slices.segment_of(owner, round));
//
// Encoded data is made of blocks, which only a codec can read: no slice and no segment begins inside a block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace deft::link {

inline constexpr std::size_t kGranuleBytes = 64;  // slices begin on cache lines of the part

struct Range {
  std::size_t first = 0;  // elements
  std::size_t count = 0;
};

struct Slices {
  std::size_t count = 0;     // elements of all
  std::size_t slice = 0;     // elements of each slice but the last ones
  std::size_t segment = 0;   // elements of each segment but a slice's last one
  std::uint64_t rounds = 0;  // 0 if there are no elements

  // Empty if the slice has no such segment.
  [[nodiscard]] Range segment_of(std::uint32_t owner, std::uint64_t round) const {
    const std::size_t slice_end = std::min((owner + 1) * slice, count);
    const std::size_t first = std::min(owner * slice + round * segment, slice_end);
    return {first, std::min(segment, slice_end - first)};
  }
};

// Elements. Slices and segments begin at its multiples: on cache lines if blocks permit. `element`: bytes of one element, a
// power of two up to kGranuleBytes. `block`: elements that stay together, 1 or more.
constexpr std::size_t granule_of(std::size_t element, std::size_t block) {
  const std::size_t line = kGranuleBytes / element;
  return line % block == 0 ? line : block;
}

// The elements that `owner` owns of `count`.
constexpr Range slice_of(std::size_t count, std::size_t granule, std::uint32_t nodes, std::uint32_t owner) {
  const std::size_t slice = ((count + nodes - 1) / nodes + granule - 1) / granule * granule;
  const std::size_t first = std::min(owner * slice, count);
  return {first, std::min(slice, count - first)};
}

// `slot`: elements that a slot holds, a granule or more.
constexpr Slices cut_slices(std::size_t count, std::size_t granule, std::uint32_t nodes, std::size_t slot) {
  if (count == 0) return {};
  const auto ceil_div = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  Slices slices{count, ceil_div(ceil_div(count, nodes), granule) * granule, 0, 0};
  slices.rounds = ceil_div(slices.slice, slot / granule * granule);
  slices.segment = ceil_div(ceil_div(slices.slice, slices.rounds), granule) * granule;
  return slices;
}

}  // namespace deft::link
