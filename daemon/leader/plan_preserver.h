// The Preserver in the leader: decides which plans of a group are followed, by what its workers tell of their gradients and of
// the loss.
//
//   auto preserver = std::make_shared<PlanPreserver>(world, nodes, epsilon, patience_us);
//   setup.guard = preserver;              // without a loss every plan is followed; with one, stale plans once judged
//   preserver->take(node, statistics);    // each time that a node sends some
//   preserver->status();                  // JSON: the statistics, and the newest decision
//
// Until the first fast fall of the loss is over all updates are fresh. Every statistic lies within two standard errors, and
// the decision in force has the benefit of the doubt. A plan is given up if even the values that favour it would refuse it.
// A refused plan is tried if even the values that speak against it would accept it, each time after twice as many steps.
//
// No model without curvature can predict whether a training tolerates stale gradients of a part of its bytes. The loss shows
// it: once it has risen (preserve/loss_watch.h), all updates are fresh at once, until stale ones may be tried again. A plan
// that makes everything stale can destroy a training within a dozen steps, so it must pass the model first. For an optimizer
// that is no SGD there is no model: stale updates begin after the first fall, and end if the loss rises.
//
// Encoded gradients may begin at once, because what an encoding leaves out is sent later. If the loss rises under them, from the
// first sample on, gradients are exact and updates fresh. If an update was stale, for as long as above. If none was, what the loss
// does without the codec decides whether it comes back (preserve/codec_trials.h).
//
// Reactor thread, but for the choices.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/plan/convergence_guard.h"
#include "core/preserve/codec_trials.h"
#include "core/preserve/preserver.h"
#include "daemon/leader/loss_statistics.h"

namespace deft::daemon {

class PlanPreserver final : public plan::ConvergenceGuard {
 public:
  // `patience_us`: after so long a search no further plan is tried. `codecs`: the names of the codecs among which plans choose.
  PlanPreserver(std::uint32_t world, std::size_t nodes, double epsilon, TimeUs patience_us,
                std::vector<std::string> codecs = {})
      : epsilon_(epsilon), patience_us_(patience_us), statistics_(world, nodes), trials_(std::move(codecs)) {}

  // Values that make no sense are counted and left out.
  void take(std::size_t node, const wire::GradientStatistics& statistics);

  Choice prepare(const plan::PlanLimits& limits) override;
  void follow(const plan::GuardedPlan& chosen) override;
  plan::ReplanReason reconsider(const model::Plan& in_force) override;

  // The statistics that a decision of this moment uses. Null: there are none since the warm-up.
  [[nodiscard]] nlohmann::json statistics() const { return statistics_.json(); }
  [[nodiscard]] nlohmann::json status() const;

 private:
  enum class Found { kNothing, kWorse, kRisen, kTry, kTrialOver };  // at the last look

  [[nodiscard]] plan::PlanLimits within_hold(plan::PlanLimits limits) const;

  [[nodiscard]] preserve::Judgement judge(const model::Plan& plan, const preserve::Walk& walk) const;
  void act_on_what_was_found();
  [[nodiscard]] std::string reason_to_change(const model::Plan& in_force);
  void judge_in_force(const model::Plan& in_force, const preserve::Walk& likely);
  [[nodiscard]] bool wants_another() const;  // a plan that was refused

  struct Hold {                       // what keeps updates fresh and gradients exact
    bool waits = false;               // for statistics by which stale updates can be judged
    bool all = false;                 // the loss has risen under stale updates: they are fresh, and gradients exact
    std::uint64_t try_from_step = 0;  // before it no refused plan is tried again
    std::uint64_t wait_steps = 0;     // the last time
  };
  struct Look {                    // the last one at the plan in force
    std::uint64_t step = 0;        // of the newest sample by then
    std::size_t blamed_codec = 0;  // that alone can have made the loss rise; 0: none
    std::string reason;
    Found found = Found::kNothing;
  };

  const double epsilon_;
  const TimeUs patience_us_;
  LossStatistics statistics_;
  double updates_per_step_ = 1;      // of the plan in force
  plan::Decision decision_;          // of the plan chosen last
  double ratio_now_ = 1;             // of that plan
  std::vector<model::Plan> wanted_;  // rather than that one, but refused
  Doubt doubt_ = Doubt::kNone;       // whom the next decision favours
  Hold hold_;
  preserve::CodecTrials trials_;
  Look look_;
};

nlohmann::json to_json(const plan::Decision& decision);

}  // namespace deft::daemon
