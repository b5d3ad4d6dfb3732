// The Preserver in the leader: judges a group's plans by what its workers tell of their gradients and of the loss.
//
//   auto preserver = std::make_shared<PlanPreserver>(world, nodes, epsilon, patience_us);
//   setup.guard = preserver;              // without a loss every plan is followed; with one, late plans once judged
//   preserver->take(node, statistics);    // each time that a node sends some
//   preserver->status();                  // JSON: the statistics, and the newest judgement
//
// The statistics are those of preserve/trend.h, each with its standard error. An update gains what the loss really loses
// by one, where the published model takes eta |G|^2; that spreads by as large a share of itself as |G|^2 does by noise
// that lies in the direction of G, the most it can. What |G|^2 decides is staleness: whether a plan can be borne.
//
// Steady. Until a training's first fast fall is over (preserve/onset.h) all updates are fresh, and the statistics begin
// after it. Every value lies within two standard errors, and the decision in force has the benefit of the doubt: a plan is
// given up when it would be refused even by those of the values that favour it, and one that was refused is tried when
// it would be accepted even by those that speak against it, each time after twice as many steps as the time before.
// Whether a training bears staleness of a part of its bytes is no question for a model, which knows neither curvature nor
// which directions are late: it is seen in the loss. Where that has risen (preserve/loss_watch.h), all updates are fresh
// at once, until late ones may be tried again. A plan that makes everything late, which can destroy a training within
// a dozen steps, must pass the model first. Where the model says nothing, as of an optimizer that is no SGD, the loss alone
// decides: late updates begin after the first fall and are taken back where it rises.
//
// Reactor thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/plan/convergence_guard.h"
#include "core/preserve/loss_watch.h"
#include "core/preserve/preserver.h"
#include "core/preserve/trend.h"
#include "core/preserve/warmup_detector.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class PlanPreserver final : public plan::ConvergenceGuard {
 public:
  // `patience_us`: no further plan is tried when one has been looked for that long.
  PlanPreserver(std::uint32_t world, std::size_t nodes, double epsilon, TimeUs patience_us)
      : world_(world), epsilon_(epsilon), patience_us_(patience_us), newest_(nodes) {}

  // What makes no sense is counted and left out.
  void take(std::size_t node, const wire::GradientStatistics& statistics);

  Result<plan::GuardedPlan> choose(const Make& make, const plan::Limits& limits) override;
  plan::ReplanReason reconsider(const model::Plan& in_force) override;

  [[nodiscard]] nlohmann::json statistics()
      const;  // what a judgement of this moment uses; null: nothing since the onset
  [[nodiscard]] nlohmann::json status() const;

 private:
  enum class Doubt { kFor, kNone, kAgainst };           // which of the likely values a plan is judged by
  enum class Found { kNothing, kWorse, kRisen, kTry };  // at the last look

  void combine();
  [[nodiscard]] Result<preserve::Walk> walk(Doubt doubt) const;
  [[nodiscard]] preserve::Judgement judge(const model::Plan& plan, const preserve::Walk& walk) const;
  Result<plan::GuardedPlan> unjudged(const Make& make, plan::Limits limits, std::string why);
  Result<plan::GuardedPlan> judged(const Make& make, const plan::Limits& limits, const preserve::Walk& walk);
  plan::GuardedPlan chosen(model::Plan plan, const preserve::Judgement& judgement, const preserve::Request& request,
                           unsigned attempts, std::string note);
  void act_on_what_was_found();
  [[nodiscard]] std::string reason_to_change(const model::Plan& in_force);
  void judge_in_force(const model::Plan& in_force, const preserve::Walk& likely);
  [[nodiscard]] bool wants_another() const;  // a plan that was refused
  [[nodiscard]] bool judges_by_loss_alone() const { return loss_alone_ && warmup_.over(); }

  const std::uint32_t world_;
  const double epsilon_;
  const TimeUs patience_us_;
  std::vector<std::optional<wire::GradientStatistics>> newest_;  // by node
  preserve::WarmupDetector warmup_;
  preserve::Trend trend_;  // since the onset
  preserve::LossWatch watch_;
  std::uint64_t step_ = 0;  // of the newest sample
  double updates_ = 0;      // that were made until then: those of a mean byte
  double learning_rate_ = 0, target_ = 0;
  bool told_ = false;        // of a loss
  bool loss_alone_ = false;  // and of nothing else: the optimizer is no SGD, and the walk no model of its training
  preserve::MergeScale merging_ = preserve::MergeScale::kMean;
  std::uint64_t refused_ = 0;  // messages

  plan::Decision decision_;          // of the plan chosen last
  double ratio_now_ = 1;             // of that plan
  std::vector<model::Plan> wanted_;  // rather than that one, but refused
  Doubt doubt_ = Doubt::kNone;       // whom the next judgement favours
  bool waits_ = false;               // for statistics by which late updates can be judged
  bool fresh_ = false;               // the loss has risen under late updates: there are none
  std::uint64_t try_from_ = 0;       // step before which no refused plan is tried again
  std::uint64_t wait_ = 0;           // steps, the last time

  double updates_per_step_ = 1;     // of the plan in force
  std::uint64_t reconsidered_ = 0;  // samples at the last look
  std::string reason_;              // found at that look
  Found found_ = Found::kNothing;
};

nlohmann::json to_json(const plan::Decision& decision);

}  // namespace deft::daemon
