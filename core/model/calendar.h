// Which generation the gradients of a step belong to, and in which step that is applied: what workers, daemons and the
// scheduler must all say alike.
//
//   Calendar calendar;                        // from step 0 on one update a step, applied at once
//   calendar.follow(40, cycle_of(plan));      // from step 40 on a plan's cycle
//   calendar.cut(57);                         // a flush between the steps 56 and 57
//   const Dated now = calendar.of_step(58);
//
// At a cut, and where another cycle begins, the generation under way ends, everything older is applied before that
// step's forward, and the cycle begins anew. So the calendar follows from the set of its cuts and cycles alone, in
// whatever order they became known. Each step is in exactly one generation, and generations are numbered from 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/plan.h"

namespace deft::model {

// The part of a plan that workers need: when generations begin, end and are applied.
struct UpdateCycle {
  std::uint32_t period_steps = 1;
  std::vector<PlanGeneration> generations = {{0, 0, 1}};  // synchronous, unless said otherwise
};

UpdateCycle cycle_of(const Plan& plan);

// As check_plan checks them.
Result<void> check_cycle(const UpdateCycle& cycle);

// As users write them: the generations of one cycle, `first-last@apply` each, `first@apply` where it is one step.
// "0-1@4,2@5": steps 0 and 1 are merged and applied before step 4, step 2 before step 5; step 3 begins the next cycle.
Result<UpdateCycle> parse_cycle(std::string_view text);
std::string to_text(const UpdateCycle& cycle);

// Generations of `cycle` that are gathered, sent or waiting to be applied at the same time: slots that the arena needs.
std::uint32_t slots_needed(const UpdateCycle& cycle);

// Most steps between a gradient and the forward that sees it.
std::uint32_t longest_delay(const UpdateCycle& cycle);

struct Dated {
  std::uint64_t generation = 0;
  std::uint64_t first_step = 0;  // merges the steps first_step to last_step
  std::uint64_t last_step = 0;
  std::uint64_t apply_step = 0;  // applied before the forward of this step
  std::uint64_t cycle_step = 0;  // where the cycles that it belongs to began: the newest flush or plan before it
  bool operator==(const Dated&) const = default;
};

class Calendar {
 public:
  Calendar() : stretches_{{}} {}

  // From `step` on `cycle` is in force. For `step` itself the newest call counts.
  void follow(std::uint64_t step, UpdateCycle cycle);
  // The cycle in force begins anew at `step`.
  void cut(std::uint64_t step);

  [[nodiscard]] Dated of_step(std::uint64_t step) const;
  [[nodiscard]] Dated at(std::uint64_t generation) const;
  // Where what is in force at `step` ends: the next cut or cycle that is known; the largest number where none is.
  [[nodiscard]] std::uint64_t end_of_stretch(std::uint64_t step) const;

 private:
  struct Stretch {
    std::uint64_t first_step = 0;
    std::uint64_t first_generation = 0;
    UpdateCycle cycle;
  };
  static constexpr std::size_t kRemembered = 64;  // stretches; older steps are no longer asked for

  [[nodiscard]] std::uint64_t end_of(std::size_t stretch) const;
  [[nodiscard]] Dated dated(std::size_t stretch, std::uint64_t index) const;
  [[nodiscard]] std::size_t stretch_of_step(std::uint64_t step) const;
  void number_from(std::size_t stretch);

  std::vector<Stretch> stretches_;  // by first_step
};

}  // namespace deft::model
