// A profile in the order of backward, which produces the profile's last bucket first.
//
//   const std::vector<double> ready_us = ready_times(profile);
//   profile.buckets[produced(profile, 0)]    // the first bucket that backward produces
#pragma once

#include <vector>

#include "core/model/profile.h"

namespace deft::model {

// The profile's number of the i-th bucket that backward produces.
inline std::size_t produced(const Profile& profile, std::size_t i) { return profile.buckets.size() - 1 - i; }

// The time in microseconds from the beginning of backward until each bucket is ready, in the order of production.
std::vector<double> ready_times(const Profile& profile);

// The link that would carry all buckets in the shortest time. The profile has a link.
std::size_t fastest_link(const Profile& profile);

}  // namespace deft::model
