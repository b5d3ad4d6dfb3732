// The bound with which tests and bench/plan compare the plans of the planner.
#pragma once

#include <algorithm>

#include "core/model/profile.h"
#include "core/plan/problem.h"

namespace deft::plan {

// The most updates a step that the links can carry: min(1, compute / the time that a generation needs).
inline double update_rate_limit(const model::Profile& profile) {
  const Problem problem(profile);
  return std::min(1.0, problem.compute_us() / std::max(problem.generation_bound_us(), 1e-9));
}

}  // namespace deft::plan
