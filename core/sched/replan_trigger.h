// When a policy that decides by what it measures looks whether it would decide otherwise now, and when it does so.
//
//   if (trigger_.due(step)) {
//     trigger_.looked(step, decided_before);
//     if (trigger_.confirm(change)) ...         // `change`: why, if at all; decided() once it is done
//   }
//
// What is measured varies, and another decision costs something: so what speaks for it must be there at several looks in a
// row, unless it is certain, as the loss of a link is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/plan/convergence_guard.h"

namespace deft::sched {

class ReplanTrigger {
 public:
  static constexpr std::uint64_t kEvery = 8;  // steps from one to the next
  static constexpr unsigned kConfirmed = 3;   // looks in a row

  explicit ReplanTrigger(std::uint64_t first_step) : at_(first_step) {}

  [[nodiscard]] bool due(std::uint64_t step) const { return step >= at_; }

  // Before the first decision each step is one to look in.
  void looked(std::uint64_t step, bool decided_before) { at_ = step + (decided_before ? kEvery : 1); }

  // Whether what this look has found is to be acted upon.
  bool confirm(const plan::ReplanReason& change) {
    seen_ = change.reason.empty() ? 0 : seen_ + 1;
    return seen_ > 0 && (change.immediate || seen_ >= kConfirmed);
  }
  void decided() { seen_ = 0; }
  // The decision holds from `step` on: what is measured before says nothing of it.
  void resume_after(std::uint64_t step) { at_ = step + kEvery; }
  void hurry(std::uint64_t step) { at_ = std::min(at_, step); }

 private:
  std::uint64_t at_;
  unsigned seen_ = 0;
};

}  // namespace deft::sched
