// The same cutting and fusing for a profile: what the model would look like with other buckets.
//
//   auto finer = rebucket(profile, "uniform:4194304");
//
// Strategies: `profile` (as given), `uniform:BYTES`, `ddp`, `mgwfbp`, `usbyte` and `deft`. A new bucket is a slice of
// the arena: compute and transfer times go with the bytes, and each transfer pays its latency once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/profile.h"

namespace deft::partition {

Result<model::Profile> rebucket(const model::Profile& profile, std::string_view bucketing);

// The profile with buckets that begin at these bytes, counted in the order of the arena (the last bucket of the profile
// first), ascending, the first 0.
model::Profile with_cuts(const model::Profile& profile, const std::vector<std::uint64_t>& cuts);

// `bucketing` is "uniform:BYTES": the number; anything else behind the colon is an error.
Result<std::uint64_t> uniform_bytes(std::string_view bucketing);

}  // namespace deft::partition
