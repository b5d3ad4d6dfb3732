// What a worker knows of a group's generations: a schedule for each tensor, kept up to date by the plans that its daemon
// announces and by the worker's own flushes.
//
// A plan is announced before the last FINISH without which no worker can come to the plan's first step, and the ring
// keeps the order, so whoever has waited for all updates that are due before a step knows that step's generation.
// May be called from any thread.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "core/model/update_schedule.h"
#include "core/shm/layout.h"

namespace deft::client {

class Generations {
 public:
  Generations(std::size_t tensors, std::uint32_t slots) : schedules_(tensors), slots_(slots) {}

  // Of a tensor that exists.
  [[nodiscard]] model::UpdateWindow at(std::size_t tensor, std::uint64_t generation) const;
  // Of all tensors: `visit(tensor, dated)` is called for each, in order.
  template <typename Visit>
  void each_of_step(std::uint64_t step, Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t t = 0; t < schedules_.size(); ++t) visit(t, schedules_[t].of_step(step));
  }
  template <typename Visit>
  void each_at(const std::uint64_t* generations, Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t t = 0; t < schedules_.size(); ++t) visit(t, schedules_[t].at(generations[t]));
  }
  // The generation under way ends before `step`, and the cycle begins anew.
  void cut(std::uint64_t step);

  // PLAN, and then its PLAN_GENERATIONs. kViolation if a number makes no sense.
  Result<void> receive(const shm::PlanRecord& plan);
  Result<void> receive(const shm::PlanGenerationRecord& generation);

 private:
  struct Announced {
    std::uint64_t step = 0;
    std::size_t first = 0;  // tensors [first, first + count)
    std::size_t count = 0;
    std::uint32_t missing = 0;  // generations
    model::UpdateCycle cycle;
  };

  mutable std::mutex mutex_;
  std::vector<model::UpdateSchedule> schedules_;  // of the tensors
  std::uint32_t slots_;
  std::optional<Announced> announced_;  // a plan whose generations are still coming
};

}  // namespace deft::client
