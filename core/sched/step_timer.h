// Measures how long a worker's steps take, without its waiting.
//
//   StepTimer time;
//   time.stage_began(stage, step, now_us, waited_us);   // the event of Scheduler
//   time.usual_us()                                      // 0 until a step has ended
//
// A disturbance, be it a pause of a minute or a neighbour that takes a third of the core for ten steps, makes steps longer and
// never shorter. So the lower third of the values counts, over a time that is longer than such a disturbance. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/sched/recent.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// The value that two thirds of `values` exceed; 0 if there are no values.
double lower_third(std::vector<double> values);

class StepTimer {
 public:
  static constexpr std::size_t kKept = 32;  // steps that are kept; shorter steps show after a third of them

  // True if a step has ended that was seen from its beginning.
  bool stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);

  [[nodiscard]] double newest_us() const;
  [[nodiscard]] double usual_us() const;
  [[nodiscard]] std::size_t ended() const { return steps_us_.count(); }  // how many steps have ended so far

 private:
  Recent<double, kKept> steps_us_;  // from forward to forward
  std::uint64_t step_ = 0;          // the step under way
  std::optional<TimeUs> began_us_;
  TimeUs waited_us_ = 0;  // the wait in the forward of this step
};

}  // namespace deft::sched
