// Says why a traced job is as slow as it is: what `deft explain` prints.
//
//   auto explanation = explain(*job, *measured);
//   explanation->causes.front().what       // "node1 computes 31 % longer than the others since step 104"
//   explanation->shares.communication_us   // of a mean step
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/replay/causes.h"
#include "core/replay/time_shares.h"

namespace deft::replay {

struct Explanation {
  std::vector<Cause> causes;  // what wins most comes first; never empty: the cause `none` says that nothing stands out
  std::string doubt = {};     // a sentence if replay errs by more than kDoubt with the traced job; else empty
  TimeShares shares;
  double measured_step_us = 0;  // the median
  double replayed_step_us = 0;
  std::vector<std::string> notes = {};  // what may lie behind the causes; a note is no cause itself

  // By which replay errs with the traced job. A cause that wins less is not told.
  [[nodiscard]] double error_us() const { return std::abs(replayed_step_us - measured_step_us); }
};

// A cause that wins less than this share of a step is not told. What only replay suspects must win more: it errs by some percent.
inline constexpr double kLeastGain = 0.03;
inline constexpr double kLeastReplayedGain = 0.06;
inline constexpr double kDoubt = 0.1;  // of the measured step

// The error of a replay that is not possible.
Result<Explanation> explain(const JobTrace& job, const MeasuredJob& measured);

}  // namespace deft::replay
