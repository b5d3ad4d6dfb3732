// The Preserver in the leader: judges a group's plans by what its workers tell of their gradients and of the loss.
//
//   auto preserver = std::make_shared<PlanPreserver>(world, nodes, epsilon, patience_us);
//   setup.judge = preserver;              // without a loss every plan is followed; with one, late plans once judged
//   preserver->take(node, statistics);    // each time that a node sends some
//   preserver->status();                  // JSON: the statistics, and the newest judgement
//
// Statistics. Of P workers m is the mean squared norm of the own gradients of a step and a the squared norm of their
// average. Then |G|^2 = (P a - m) / (P - 1) is free of noise, and (m - a) / (P - 1) = tr(Sigma) / B is the noise of the
// average (McCandlish et al., 2018, appendix A). One step tells little: moving averages are used. The gain of an update
// is eta |G|^2 on average; it spreads by |G| sqrt(tr(Sigma) / B) at most, where all noise lies in the direction of G.
// How much of it does is not measured, so that bound is taken.
//
// Never to and fro: another plan is asked for only when the one in force has become worse than epsilon allows, or when
// the one that was refused for it has become better than half of epsilon demands. Reactor thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/preserve/preserver.h"
#include "core/sched/plan_judge.h"
#include "proto/control.pb.h"

namespace deft::daemon {

class PlanPreserver final : public sched::PlanJudge {
 public:
  // `patience_us`: no further plan is tried when one has been looked for that long.
  PlanPreserver(std::uint32_t world, std::size_t nodes, double epsilon, TimeUs patience_us)
      : world_(world), epsilon_(epsilon), patience_us_(patience_us), newest_(nodes) {}

  // What makes no sense is counted and left out.
  void take(std::size_t node, const proto::GradientStatistics& statistics);

  Result<sched::JudgedPlan> choose(const Make& make, const sched::PlanLimits& limits) override;
  std::string reconsider(const model::Plan& in_force) override;

  [[nodiscard]] nlohmann::json statistics() const;  // what a judgement of this moment uses; null: nothing yet
  [[nodiscard]] nlohmann::json status() const;

 private:
  struct Averages {  // moving ones, but for what the user sets
    std::uint64_t step = 0;
    double gradient = 0;  // |G|^2; may be below 0 where there is more noise than gradient
    double noise = 0;     // tr(Sigma) / B
    double loss = 0, target = 0, learning_rate = 0;
    preserve::Merging merging = preserve::Merging::kMean;
  };

  void combine();
  [[nodiscard]] Result<preserve::Walk> walk() const;
  Result<sched::JudgedPlan> unjudged(const Make& make, sched::PlanLimits limits, std::string why);
  sched::JudgedPlan chosen(model::Plan plan, const preserve::Judgement& judgement, const preserve::Request& request,
                           unsigned attempts, std::string note);
  std::string reason_to_change(const model::Plan& in_force);

  const std::uint32_t world_;
  const double epsilon_;
  const TimeUs patience_us_;
  std::vector<std::optional<proto::GradientStatistics>> newest_;  // by node
  Averages averages_;
  std::uint64_t samples_ = 0;         // steps that are in the averages
  std::uint64_t refused_ = 0;         // messages
  sched::Verdict verdict_;            // of the plan chosen last
  double ratio_now_ = 1;              // of that plan
  std::optional<model::Plan> first_;  // what would be followed without judgement, where it was refused
  bool waits_ = false;                // for statistics by which late updates can be judged
  std::uint64_t reconsidered_ = 0;    // samples at the last look
  std::string reason_;                // found at that look
};

nlohmann::json to_json(const sched::Verdict& verdict);

}  // namespace deft::daemon
