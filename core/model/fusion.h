// MG-WFBP's rule (Shi et al., INFOCOM 2019) for merging buckets into one transfer. A bucket is merged into the transfer before
// it if that saves more start-up time of the link than the transfer waits for the bucket. Only neighbours in the order of
// production are merged. core/sched (policy mgwfbp) and core/partition use the rule.
#pragma once

#include <vector>

#include "core/model/buckets.h"
#include "core/model/profile.h"

namespace deft::model {

// The buckets with which transfers begin, by their place in the order of production: ascending, and the first is 0. A bucket
// for which `apart` is true begins a transfer in any case; an empty `apart` is false for all. The profile has a link.
std::vector<BucketIndex> fused_starts(const Profile& profile, const std::vector<bool>& apart = {});

}  // namespace deft::model
