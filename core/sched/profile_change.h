// When a profile that is measured anew is worth deciding anew. What the policies that do so share.
#pragma once

#include <string>
#include <vector>

#include "core/model/profile.h"

namespace deft::sched {

inline constexpr double kMoved = 0.1;  // a change of a time or a throughput that is worth a new decision (looks.h)

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
