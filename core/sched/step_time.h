// How long a worker's steps take it, without what it waits for.
//
//   StepTime time;
//   time.stage_began(stage, step, now_us, waited_us);   // as Scheduler has it
//   time.usual_us()                                      // 0 until a step has ended
//
// Anything may be disturbed now and then, be it by a minute's pause or by a neighbour that takes a third of the core for
// ten steps, and that only adds: so the lower third counts, of a time that is longer than such a disturbance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/sched/recent.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

// What two thirds of the values are above; 0 of nothing.
double lower_third(std::vector<double> values);

class StepTime {
 public:
  static constexpr std::size_t kKept = 32;  // steps; that they are shorter now shows after a third of them

  // True: a step has ended, which was seen from its beginning.
  bool stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);

  [[nodiscard]] double newest_us() const;
  [[nodiscard]] double usual_us() const;
  [[nodiscard]] std::size_t ended() const { return steps_us_.count(); }  // steps so far

 private:
  Recent<double, kKept> steps_us_;  // from forward to forward
  std::uint64_t step_ = 0;          // the one under way
  std::optional<TimeUs> began_us_;
  TimeUs waited_us_ = 0;  // in its forward
};

}  // namespace deft::sched
