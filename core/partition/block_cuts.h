// The bucketings that depend on times: MG-WFBP's merging, US-Byte's blocks, and DeFT's cutting of large buckets.
//
//   const model::Profile cut = with_cuts(profile, mgwfbp_cuts(profile));   // rebucket.h
//
// Each gives the bytes at which buckets begin, in the order of the arena: ascending, and the first is 0.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/profile.h"

namespace deft::partition {

inline constexpr std::uint64_t kUsByteUnitBytes = 4'000'000;
inline constexpr std::uint64_t kDeftUnitBytes = 26'000'000;  // 6,500,000 elements of float32

// Merges a bucket into the next one if the message that this saves is worth more than the wait for the next one.
std::vector<std::uint64_t> mgwfbp_cuts(const model::Profile& profile);

// Cuts the blocks of one backward: whole units of the most urgent bucket until the next bucket is ready, then the rest of each
// bucket. `unit_bytes` is the size of a unit.
std::vector<std::uint64_t> usbyte_cuts(const model::Profile& profile, std::uint64_t unit_bytes);

// Cuts as usbyte_cuts does, and further until no bucket takes longer on any link than the shorter one of forward and backward,
// in which it may travel.
std::vector<std::uint64_t> deft_cuts(const model::Profile& profile);

}  // namespace deft::partition
