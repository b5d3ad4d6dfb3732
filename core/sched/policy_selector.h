// Compares policies for a measured profile, for the policy `auto`. The implementation runs simulations (core/select), which
// core/sched must not include.
//
//   selector->ask({profile, setup, candidates, overlaps_forward});   // returns at once
//   if (auto forecasts = selector->take()) ...                       // at a later step
#pragma once

#include <optional>
#include <vector>

#include "core/model/profile.h"
#include "core/sched/policy_change.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

struct PolicyQuestion {
  model::Profile profile;  // without lost links
  Setup setup;             // its policy and links are replaced: by each candidate's, and by the profile's
  std::vector<PolicyChoice> candidates;
  bool overlaps_forward = true;  // false: the workers wait for all updates before they begin forward
  bool tunes_sizes = false;      // true: the answer also has other sizes of parts and credit, if they are better
};

// One thread calls both functions.
class PolicySelector {
 public:
  virtual ~PolicySelector() = default;

  // A new question replaces one that has no answer yet.
  virtual void ask(PolicyQuestion question) = 0;

  // The answer, once. A candidate that cannot be simulated is left out. Equal times are in the order of the question.
  virtual std::optional<std::vector<PolicyForecast>> take() = 0;
};

}  // namespace deft::sched
