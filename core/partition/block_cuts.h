// The bucketings that look at times: where MG-WFBP merges, US-Byte cuts its blocks, and DeFT cuts what is too large.
// All give the bytes at which buckets begin, in the order of the arena, the first 0.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/profile.h"

namespace deft::partition {

inline constexpr std::uint64_t kUsByteUnitBytes = 4'000'000;
inline constexpr std::uint64_t kDeftUnitBytes = 26'000'000;  // 6,500,000 elements of float32

// Merges a bucket into the next one where the message saved is worth more than the wait for that one.
std::vector<std::uint64_t> mgwfbp_cuts(const model::Profile& profile);

// The blocks of one backward: whole units of the most urgent bucket until the next is ready, then each bucket's rest.
std::vector<std::uint64_t> usbyte_cuts(const model::Profile& profile, std::uint64_t unit_bytes);

// US-Byte's, and no bucket takes longer on any link than the shorter of the two stages in which it may travel.
std::vector<std::uint64_t> deft_cuts(const model::Profile& profile);

}  // namespace deft::partition
