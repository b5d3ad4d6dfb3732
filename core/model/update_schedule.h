// An update schedule says which generation the gradients of a step belong to, and before which step it is applied. Workers,
// daemons and the scheduler compute it with this code, so all give the same answer. Each bucket has its own schedule.
//
//   UpdateSchedule schedule;         // from step 0 on one update a step, which is applied at once
//   schedule.follow(40, cycle);      // from step 40 on the cycle of a plan
//   schedule.cut(57);                // a flush between the steps 56 and 57
//   const UpdateWindow now = schedule.of_step(58);
//
// At a cut, and when another cycle begins, the generation under way ends, everything older is applied before that step's
// forward, and the cycle begins anew. So the schedule depends on its cuts and cycles alone, and not on the order in which they
// became known. Each step is in exactly one generation. Generations are numbered from 0. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/update_cycle.h"

namespace deft::model {

// One generation with its steps.
struct UpdateWindow {
  std::uint64_t generation = 0;
  std::uint64_t first_step = 0;  // the generation merges the steps first_step to last_step
  std::uint64_t last_step = 0;
  std::uint64_t apply_step = 0;  // the update is applied before the forward of this step
  std::uint64_t cycle_step = 0;  // the step with which the newest plan or flush before this generation began
  bool operator==(const UpdateWindow&) const = default;
};

class UpdateSchedule {
 public:
  UpdateSchedule() : epochs_{{0, 0, std::make_shared<const UpdateCycle>()}} {}

  // From `step` on `cycle` is in force. If two calls name the same step, the newer call counts.
  void follow(std::uint64_t step, const std::shared_ptr<const UpdateCycle>& cycle);
  // The cycle in force begins anew at `step`.
  void cut(std::uint64_t step);

  // The generation that `step` belongs to, and the generation with this number.
  [[nodiscard]] UpdateWindow of_step(std::uint64_t step) const;
  [[nodiscard]] UpdateWindow at(std::uint64_t generation) const;

 private:
  struct ScheduleEpoch {
    std::uint64_t first_step = 0;
    std::uint64_t first_generation = 0;
    // Shared by all buckets that have the same cycle. A cut has the object of the epoch before it, a follow() one of its own.
    std::shared_ptr<const UpdateCycle> cycle;
  };
  static constexpr std::size_t kRemembered = 64;  // epochs; nobody asks for older steps any more

  [[nodiscard]] std::uint64_t end_of(std::size_t epoch) const;
  [[nodiscard]] UpdateWindow dated(std::size_t epoch, std::uint64_t index) const;
  [[nodiscard]] std::size_t epoch_of_step(std::uint64_t step) const;
  void number_from(std::size_t epoch);

  std::vector<ScheduleEpoch> epochs_;  // ordered by first_step
};

// Changes the schedules of all buckets of a group at once. `schedules` has one for each bucket.
void follow(std::span<UpdateSchedule> schedules, std::uint64_t step, const UpdateCycles& cycles);
void cut(std::span<UpdateSchedule> schedules, std::uint64_t step);

}  // namespace deft::model
