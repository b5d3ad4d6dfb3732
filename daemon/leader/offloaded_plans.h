// Makes plans of the knapsack policy on another thread of the daemon, because planning would hold up the event loop.
//
//   setup.plan_runner = std::make_shared<OffloadedPlans>(offload);   // as Reactor::offload, for the job's user
//
// Work that a newer one replaces still runs to its end, and its result is dropped. Reactor thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "core/plan/plan_runner.h"

namespace deft::daemon {

// Runs `work` on another thread, and then `done` on this one. If `work` throws, `done` does not come, and the job fails.
using Offload = std::function<void(std::function<void()> work, std::function<void()> done)>;

class OffloadedPlans final : public plan::PlanRunner {
 public:
  explicit OffloadedPlans(Offload offload) : offload_(std::move(offload)) {}

  void begin(Work work) override {
    newest_ = std::make_shared<Question>();
    offload_([question = newest_, work = std::move(work)] { question->made = work(); },
             [question = newest_] { question->is_ready = true; });
  }

  std::optional<Result<plan::GuardedPlan>> take() override {
    if (!newest_ || !newest_->is_ready) return std::nullopt;
    return std::exchange(newest_, nullptr)->made;
  }

 private:
  struct Question {
    std::optional<Result<plan::GuardedPlan>> made;  // the other thread's, until it is ready
    bool is_ready = false;
  };

  const Offload offload_;
  std::shared_ptr<Question> newest_;
};

}  // namespace deft::daemon
