// When a profile that is measured anew is worth deciding anew. What the policies that do so share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/profile.h"

namespace deft::sched {

inline constexpr std::uint64_t kLookEvery = 8;  // steps between comparisons of a decision with what is measured
inline constexpr double kMoved = 0.1;           // a change of a time or a throughput that is worth a new one,
inline constexpr unsigned kConfirmed = 3;       // if it is seen so many times in a row

inline bool moved(double now, double then) { return now > then + kMoved * then || now < then - kMoved * then; }

// "a step's compute time (us) went from 100 to 120".
std::string describe_change(const std::string& what, double before, double after);

// What has moved away from the profile that a decision was made for; empty: nothing that matters. Links that are lost do
// not count.
std::string describe_move(const model::Profile& now, const model::Profile& then, const std::vector<bool>& lost);

// The profile with the links that are left.
model::Profile without_lost(model::Profile profile, const std::vector<bool>& lost);

// "the loss of link 0, 2".
std::string describe_loss(const std::vector<bool>& lost);

}  // namespace deft::sched
