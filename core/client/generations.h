// What a worker knows of a group's generations: the calendar, kept up to date by the plans that its daemon announces and
// by the worker's own flushes.
//
// A plan is announced before the last FINISH without which no worker can come to the plan's first step, and the ring
// keeps the order, so whoever has waited for all updates that are due before a step knows that step's generation.
// May be called from any thread.
#pragma once

#include <mutex>
#include <optional>

#include "core/model/calendar.h"
#include "core/shm/layout.h"

namespace deft::client {

class Generations {
 public:
  explicit Generations(std::uint32_t slots) : slots_(slots) {}

  [[nodiscard]] model::Dated of_step(std::uint64_t step) const;
  [[nodiscard]] model::Dated at(std::uint64_t generation) const;
  // The generation under way ends before `step`, and the cycle begins anew.
  void cut(std::uint64_t step);

  // Takes a PLAN or PLAN_GENERATION record; an error for one that makes no sense.
  Result<void> receive(const shm::Record& record);
  [[nodiscard]] std::uint64_t epoch() const;  // plans so far

 private:
  struct Announced {
    std::uint64_t step = 0;
    std::uint64_t epoch = 0;
    std::uint32_t missing = 0;
    model::UpdateCycle cycle;
  };

  mutable std::mutex mutex_;
  model::Calendar calendar_;
  std::uint32_t slots_;
  std::uint64_t epoch_ = 0;
  std::optional<Announced> announced_;  // a plan whose generations are still coming
};

}  // namespace deft::client
