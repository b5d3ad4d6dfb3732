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

}  // namespace deft::partition
