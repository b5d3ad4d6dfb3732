// MG-WFBP's rule (Shi et al., INFOCOM 2019): a bucket is merged into the transfer before it where the start-up of the link
// that this saves is worth more than the wait for it. Only neighbours in the order of production are merged.
#pragma once

#include <vector>

#include "core/model/buckets.h"
#include "core/model/profile.h"

namespace deft::model {

// The buckets with which transfers begin, in the order of production and by it: ascending, the first 0. Where `apart` holds
// for a bucket it begins one in any case; empty: it holds for none. The profile has a link.
std::vector<BucketIndex> fused_starts(const Profile& profile, const std::vector<bool>& apart = {});

}  // namespace deft::model
