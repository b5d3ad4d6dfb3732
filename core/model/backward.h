// A profile as backward sees it: which bucket comes when, and where the link that matters most is. Backward produces the
// last bucket of the profile first.
#pragma once

#include <vector>

#include "core/model/profile.h"

namespace deft::model {

// The bucket of the profile that backward produces as the i-th.
inline std::size_t produced(const Profile& profile, std::size_t i) { return profile.buckets.size() - 1 - i; }

// When each bucket is ready, from the beginning of backward, in the order of production.
std::vector<double> ready_times(const Profile& profile);

// The link that would be done first with all buckets. There is one at least.
std::size_t fastest_link(const Profile& profile);

}  // namespace deft::model
