// The hook of a planning policy for a guard of convergence, which decides whether a plan is followed. So a policy need not
// know by what the guard judges.
//
//   setup.guard = std::make_shared<MyGuard>();   // none: every plan that a policy makes is followed
//
// The policy asks for each plan through choose(), which calls `make` until the guard is content. At its checks of new
// profiles it asks through reconsider() whether the guard would still choose the plan in force. A guard does no I/O towards
// the scheduler and may keep what it was told from one call to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/plan/limits.h"

namespace deft::plan {

// What a guard says of the plan that it has chosen.
struct Decision {
  bool judged = false;   // false: nothing was known to judge by; `note` says why
  bool accepted = true;  // false: no plan was accepted; this is the last that was tried
  double ratio = 1;      // expected loss with an update a step / with the plan; below 1 the plan trains worse
  // What the plan was made for.
  double capacity = 1;
  std::uint32_t max_staleness_steps = 0;
  unsigned attempts = 1;  // plans that were made
  std::string note;
};

struct GuardedPlan {
  model::Plan plan;
  Decision decision;
};

struct ReplanReason {
  std::string reason = {};  // empty: there is none
  bool immediate = false;   // it need not be confirmed by further checks
};

class ConvergenceGuard {
 public:
  using Make = std::function<Result<model::Plan>(const Limits&)>;

  virtual ~ConvergenceGuard() = default;

  // The plan to follow, of those that `make` gives for `limits` or stricter ones. An error of `make` for `limits`
  // themselves is handed on.
  virtual Result<GuardedPlan> choose(const Make& make, const Limits& limits) = 0;

  // Whether another plan would be chosen now than `in_force`.
  virtual ReplanReason reconsider(const model::Plan& in_force) = 0;
};

}  // namespace deft::plan
