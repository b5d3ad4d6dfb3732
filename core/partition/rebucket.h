// Cuts and fuses the buckets of a profile, to see how the model behaves with other buckets.
//
//   auto finer = rebucket(profile, "uniform:4194304");
//
// Strategies: `profile` (the buckets as given), `uniform:BYTES`, `ddp`, `mgwfbp`, `usbyte` and `deft`. A new bucket is a slice
// of the arena. It gets compute and transfer times by its share of the bytes, and each transfer pays the latency once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/profile.h"

namespace deft::partition {

// kInvalid for an unknown strategy.
Result<model::Profile> rebucket(const model::Profile& profile, std::string_view bucketing);

// The profile with buckets that begin at the bytes `cuts`. They count in the order of the arena, in which the last bucket of
// the profile is the first; they ascend, and the first is 0.
model::Profile with_cuts(const model::Profile& profile, const std::vector<std::uint64_t>& cuts);

// The number in "uniform:BYTES". kInvalid if anything else stands behind the colon.
Result<std::uint64_t> uniform_bytes(std::string_view bucketing);

// The bucketings that depend on times (block_cuts.cc). Each gives the cuts for with_cuts().

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
