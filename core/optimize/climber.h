// Climbs from settings to better ones: changes one size or two at a time, up and down a ladder of powers of two, as long as steps get
// shorter.
//
//   const Climber climber(replays, measured, limits);
//   best = climber.best_of(candidates, best, kLeastGain);      // climbs from each candidate
#pragma once

#include <vector>

#include "core/optimize/replays.h"
#include "core/optimize/search.h"

namespace deft::optimize {

inline constexpr double kLeastClimb = 0.001;  // of a step: a change that wins less is none

// True if another size of parts or credit changes what the policy sends. On one link a policy that keeps the order of readiness
// neither cuts nor waits.
bool uses_sizes(const std::string& policy, std::size_t links, const SearchLimits& limits);

class Climber {
 public:
  Climber(Replays& replays, const replay::MeasuredJob& measured, const SearchLimits& limits)
      : replays_(replays), measured_(measured), limits_(limits) {}

  // Where a climb from there ends.
  [[nodiscard]] Candidate from(Candidate candidate) const;
  // The best of the candidates after a climb from each of them, or `best`. One must be faster by this share.
  [[nodiscard]] Candidate best_of(const std::vector<Candidate>& candidates, Candidate best, double least_gain) const;

 private:
  Replays& replays_;
  const replay::MeasuredJob& measured_;
  const SearchLimits& limits_;
};

}  // namespace deft::optimize
