// What comes of the settings that a user's passes propose (SearchLimits::passes).
//
//   const auto bests = after_passes(climber, replays, measured, limits, best, found);
//   bests->front()      // the best at the price of `best`: the same links, and no more tensors rounded
//   bests->back()       // the best of all
#pragma once

#include <vector>

#include "core/optimize/climber.h"
#include "core/optimize/replays.h"
#include "core/optimize/search.h"

namespace deft::optimize {

// Asks the passes and climbs from what they propose, again and again, as long as that makes steps shorter or rounds fewer gradients, and
// as long as there is time. What costs more than `best` beside time must win kLeastGain beside all before it. Counts in `found` how often
// it has asked, and the proposals.
Result<std::vector<Candidate>> after_passes(const Climber& climber, Replays& replays,
                                            const replay::MeasuredJob& measured, const SearchLimits& limits,
                                            const Candidate& best, Found& found);

}  // namespace deft::optimize
