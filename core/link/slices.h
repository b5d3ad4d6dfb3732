// How a reduction cuts its data: each node owns a slice, and reduces it for all in segments, one a round. A segment fits a slot
// of the peers.
//
//   const Slices slices = cut_slices(count, element_bytes, nodes, slot_bytes);
//   for (round < slices.rounds) send_to(owner, slices.segment_of(owner, round));
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

// The elements that `owner` owns of `count`.
inline Range slice_of(std::size_t count, std::size_t element, std::uint32_t nodes, std::uint32_t owner) {
  const std::size_t granule = kGranuleBytes / element;
  const std::size_t slice = ((count + nodes - 1) / nodes + granule - 1) / granule * granule;
  const std::size_t first = std::min(owner * slice, count);
  return {first, std::min(slice, count - first)};
}

// `element`: bytes of one, a power of two up to kGranuleBytes; a slot holds a granule or more.
inline Slices cut_slices(std::size_t count, std::size_t element, std::uint32_t nodes, std::size_t slot_bytes) {
  if (count == 0) return {};
  const auto ceil_div = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const std::size_t granule = kGranuleBytes / element;
  Slices slices{count, ceil_div(ceil_div(count, nodes), granule) * granule, 0, 0};
  slices.rounds = ceil_div(slices.slice, slot_bytes / element);
  slices.segment = ceil_div(ceil_div(slices.slice, slices.rounds), granule) * granule;
  return slices;
}

}  // namespace deft::link
