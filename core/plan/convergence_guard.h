// A guard of convergence decides whether a policy may follow a plan that merges or delays updates. This is the interface
// through which a policy asks. So a policy need not know how the guard judges.
//
//   setup.guard = std::make_shared<MyGuard>();   // without a guard every plan is followed
//
// For each plan the policy asks for a choice. The choice calls `make` until it is content. It owns all data that it needs, so
// another thread can run it. follow() tells the guard the choice. At its checks of new profiles the policy asks through
// reconsider() whether the guard would still choose the plan in force. A guard may remember earlier calls. All calls but those of
// a choice come from the scheduler's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/plan.h"
#include "core/plan/plan_limits.h"

namespace deft::plan {

// The guard's opinion of the plan that it has chosen.
struct Decision {
  bool judged = false;   // false: the guard had no statistics to judge by; `note` says why
  bool accepted = true;  // false: the guard accepted no plan; this plan was tried last
  double ratio = 1;  // the loss expected with one update a step over that with the plan; below 1 the plan trains worse
  // The limits that the plan was made for.
  double capacity = 1;
  std::uint32_t max_staleness_steps = 0;
  unsigned attempts = 1;  // how many plans were made
  std::string note;
};

// The chosen plan, and why it was chosen.
struct GuardedPlan {
  model::Plan plan;
  Decision decision = {};
  std::vector<model::Plan> refused = {};  // made before it, in this choice
};

// Why another plan should be made.
struct ReplanReason {
  std::string reason = {};  // empty: there is no reason
  bool immediate = false;   // true: further checks need not confirm the reason
  bool is_loss = false;     // a link is lost
};

class ConvergenceGuard {
 public:
  using Make = std::function<Result<model::Plan>(const PlanLimits&)>;

  virtual ~ConvergenceGuard() = default;

  // Chooses the plan to follow: calls `make` with the limits of prepare(), and with stricter limits if that plan is refused. If
  // `make` fails for the first limits, its error is returned. Any thread.
  using Choice = std::function<Result<GuardedPlan>(const Make& make)>;
  virtual Choice prepare(const PlanLimits& limits) = 0;

  // `chosen`, of the newest choice, is followed from now on.
  virtual void follow(const GuardedPlan& chosen) = 0;

  // All of it at once.
  Result<GuardedPlan> choose(const Make& make, const PlanLimits& limits) {
    auto chosen = prepare(limits)(make);
    if (chosen) follow(*chosen);
    return chosen;
  }

  // Says whether the guard would now choose another plan than `in_force`, and why.
  virtual ReplanReason reconsider(const model::Plan& in_force) = 0;
};

}  // namespace deft::plan
