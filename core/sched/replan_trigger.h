// Says in which steps a policy checks whether it would decide otherwise now, and whether one check is enough (hysteresis).
//
//   if (trigger.due(step)) {
//     trigger.looked(step, decided_before);
//     if (trigger.confirm(reason)) ...         // decide anew, and call decided()
//   }
//
// Measurements vary, and another decision has a cost. So several checks in a row must find a reason, unless the reason is
// certain, as the loss of a link is.
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

  // True if the policy should act on `found`, the result of this check.
  bool confirm(const plan::ReplanReason& found) {
    seen_ = found.reason.empty() ? 0 : seen_ + 1;
    return seen_ > 0 && (found.immediate || seen_ >= kConfirmed);
  }
  void decided() { seen_ = 0; }
  // The decision holds from `step` on, so measurements from before that step say nothing about it.
  void resume_after(std::uint64_t step) { at_ = step + kEvery; }
  void hurry() { at_ = 0; }  // the next step is checked

 private:
  std::uint64_t at_ = 0;
  unsigned seen_ = 0;
};

}  // namespace deft::sched
