// Which generation the gradients of a step belong to, and in which step that is applied: what workers, daemons and the
// scheduler must all say alike. Each bucket has a schedule of its own, and so has each tensor in it.
//
//   UpdateSchedule schedule;                        // from step 0 on one update a step, applied at once
//   schedule.follow(40, cycle);                // from step 40 on a plan's cycle
//   schedule.cut(57);                         // a flush between the steps 56 and 57
//   const UpdateWindow now = schedule.of_step(58);
//
// At a cut, and where another cycle begins, the generation under way ends, everything older is applied before that
// step's forward, and the cycle begins anew. So the schedule follows from the set of its cuts and cycles alone, in
// whatever order they became known. Each step is in exactly one generation, and generations are numbered from 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/update_cycle.h"

namespace deft::model {

struct UpdateWindow {
  std::uint64_t generation = 0;
  std::uint64_t first_step = 0;  // merges the steps first_step to last_step
  std::uint64_t last_step = 0;
  std::uint64_t apply_step = 0;  // applied before the forward of this step
  std::uint64_t cycle_step = 0;  // where the cycles that it belongs to began: the newest flush or plan before it
  bool operator==(const UpdateWindow&) const = default;
};

class UpdateSchedule {
 public:
  UpdateSchedule() : epochs_{{0, 0, std::make_shared<const UpdateCycle>()}} {}

  // From `step` on `cycle` is in force. For `step` itself the newest call counts.
  void follow(std::uint64_t step, std::shared_ptr<const UpdateCycle> cycle);
  // The cycle in force begins anew at `step`.
  void cut(std::uint64_t step);

  [[nodiscard]] UpdateWindow of_step(std::uint64_t step) const;
  [[nodiscard]] UpdateWindow at(std::uint64_t generation) const;

 private:
  struct ScheduleEpoch {
    std::uint64_t first_step = 0;
    std::uint64_t first_generation = 0;
    std::shared_ptr<const UpdateCycle> cycle;  // of all buckets that have the same
  };
  static constexpr std::size_t kRemembered = 64;  // epochs; older steps are no longer asked for

  [[nodiscard]] std::uint64_t end_of(std::size_t epoch) const;
  [[nodiscard]] UpdateWindow dated(std::size_t epoch, std::uint64_t index) const;
  [[nodiscard]] std::size_t epoch_of_step(std::uint64_t step) const;
  void number_from(std::size_t epoch);

  std::vector<ScheduleEpoch> epochs_;  // by first_step
};

// The schedules of a group's buckets: all change at the same steps.
void follow(std::span<UpdateSchedule> schedules, std::uint64_t step, const UpdateCycles& cycles);
void cut(std::span<UpdateSchedule> schedules, std::uint64_t step);

}  // namespace deft::model
