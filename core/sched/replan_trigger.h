// In which steps a policy checks whether it would decide otherwise now, and whether one check is enough (hysteresis).
//
//   if (trigger.due(step)) {
//     trigger.looked(step, decided_before);
//     if (trigger.confirm(reason)) ...         // then decided()
//   }
//
// Measurements vary, and another decision costs something. So several checks in a row must find a reason, unless the reason
// is certain, as the loss of a link is.
#pragma once

#include <cstdint>

#include "core/plan/convergence_guard.h"

namespace deft::sched {

class ReplanTrigger {
 public:
  static constexpr std::uint64_t kEvery = 8;  // steps from one check to the next
  static constexpr unsigned kConfirmed = 3;   // checks in a row

  [[nodiscard]] bool due(std::uint64_t step) const { return step >= at_; }

  // Before the first decision every step is checked.
  void looked(std::uint64_t step, bool decided_before) { at_ = step + (decided_before ? kEvery : 1); }

  // Whether to act on what this check has found.
  bool confirm(const plan::ReplanReason& found) {
    seen_ = found.reason.empty() ? 0 : seen_ + 1;
    return seen_ > 0 && (found.immediate || seen_ >= kConfirmed);
  }
  void decided() { seen_ = 0; }
  // The decision holds from `step` on: what is measured before says nothing of it.
  void resume_after(std::uint64_t step) { at_ = step + kEvery; }
  void hurry() { at_ = 0; }

 private:
  std::uint64_t at_ = 0;
  unsigned seen_ = 0;
};

}  // namespace deft::sched
