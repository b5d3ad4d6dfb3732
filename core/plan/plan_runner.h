// Makes plans on another thread, so that the scheduler's thread goes on meanwhile. Planning takes up to a second for thousands of
// buckets, several links and codecs.
//
//   setup.plan_runner = std::make_shared<MyRunner>();      // without a runner plans are made at once
//   runner->begin([=] { return choice(make); });           // returns at once
//   if (auto made = runner->take()) ...                    // at a later step
//
// One thread calls both functions.
#pragma once

#include <functional>
#include <optional>

#include "core/base/status.h"
#include "core/plan/convergence_guard.h"

namespace deft::plan {

class PlanRunner {
 public:
  // Any thread may run it. It owns all that it uses, because it may outlive the scheduler.
  using Work = std::function<Result<GuardedPlan>()>;

  virtual ~PlanRunner() = default;

  // The result of earlier work is never given after this.
  virtual void begin(Work work) = 0;

  // The result of the newest work, once; nothing: it is not ready.
  virtual std::optional<Result<GuardedPlan>> take() = 0;
};

}  // namespace deft::plan
