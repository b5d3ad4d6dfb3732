#include "daemon/leader/plan_preserver.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::daemon {
namespace {

constexpr std::uint64_t kFirstWait = 64;  // steps until what was refused may be tried again; doubles each time

std::size_t most_codec(const model::Plan& plan) {
  return plan.codecs.empty() ? 0 : *std::ranges::max_element(plan.codecs);
}

// A choice that nothing judges. If no loss is told, nobody asks for a judgement. If one is told, a plan that cannot be judged yet
// keeps its updates fresh, and a plan that never can be judged is followed.
struct UnjudgedChoice {
  plan::PlanLimits limits;
  std::string why;

  Result<plan::GuardedPlan> operator()(const plan::ConvergenceGuard::Make& make) const {
    auto plan = make(limits);
    if (!plan) return tl::unexpected(plan.error());
    return plan::GuardedPlan{*std::move(plan), {false, true, 1, limits.capacity, limits.max_staleness_steps, 1, why}};
  }
};

// A choice that makes plans until the model of `walk` accepts one, for at most `patience_us`.
struct JudgedChoice {
  plan::PlanLimits limits;
  preserve::Walk walk;
  preserve::MergeScale merge_scale;
  double epsilon;
  TimeUs patience_us;

  Result<plan::GuardedPlan> operator()(const plan::ConvergenceGuard::Make& make) const;
};

Result<plan::GuardedPlan> JudgedChoice::operator()(const plan::ConvergenceGuard::Make& make) const {
  constexpr auto kStaleness = preserve::Staleness::kOfAlmostAllBytes;
  const TimeUs deadline = MonotonicClock::now() + patience_us;
  std::optional<model::Plan> last;
  std::vector<model::Plan> refused;
  preserve::PlanRequest asked{limits.capacity, limits.max_staleness_steps};
  unsigned attempts = 0;
  const auto planner = [&](const preserve::PlanRequest& request) -> Result<model::Plan> {
    if (last && MonotonicClock::now() > deadline)
      return fail(ErrorKind::kTimeout, "there was no time to try more plans");
    plan::PlanLimits stricter = limits;
    stricter.capacity = request.capacity;
    stricter.max_staleness_steps = request.max_staleness_steps;
    auto plan = make(stricter);
    if (!plan) return plan;
    if (last) refused.push_back(*last);
    last = *plan;
    asked = request;
    ++attempts;
    return plan;
  };
  auto found = preserve::preserve(planner, walk, asked, merge_scale, epsilon, kStaleness);
  if (!found && !last) return tl::unexpected(found.error());
  const auto judgement = found ? found->judgement : preserve::judge(*last, walk, merge_scale, epsilon, kStaleness);
  return plan::GuardedPlan{*std::move(last),
                           {true, judgement.accepted, judgement.ratio, asked.capacity, asked.max_staleness_steps,
                            attempts, found ? "" : found.error().what},
                           std::move(refused)};
}

}  // namespace

nlohmann::json to_json(const plan::Decision& decision) {
  nlohmann::json json{{"judged", decision.judged},
                      {"accepted", decision.accepted},
                      {"capacity", decision.capacity},
                      {"max_staleness_steps", decision.max_staleness_steps},
                      {"attempts", decision.attempts}};
  if (decision.judged) json["ratio"] = decision.ratio;
  if (!decision.note.empty()) json["note"] = decision.note;
  return json;
}

preserve::Judgement PlanPreserver::judge(const model::Plan& plan, const preserve::Walk& walk) const {
  return preserve::judge(plan, walk, statistics_.merge_scale(), epsilon_, preserve::Staleness::kOfAlmostAllBytes);
}

plan::PlanLimits PlanPreserver::within_hold(plan::PlanLimits limits) const {
  const bool exact = hold_.all || trials_.is_open();
  if (hold_.waits || exact) limits.max_staleness_steps = 0;
  limits.codecs.last = exact ? 0 : std::min(limits.codecs.last, trials_.most_codec());
  return limits;
}

void PlanPreserver::take(std::size_t node, const wire::GradientStatistics& statistics) {
  const std::uint64_t before = statistics_.step();
  statistics_.take(node, statistics, updates_per_step_);
  if (statistics_.step() != before && statistics_.is_finite()) trials_.take(statistics_.step(), statistics_.loss());
}

// Why another plan is asked for may be what the last look found, or something else meanwhile.
void PlanPreserver::act_on_what_was_found() {
  const Found found = std::exchange(look_.found, Found::kNothing);
  look_.step = statistics_.step();
  look_.reason.clear();
  const bool is_codec_alone = found == Found::kRisen && look_.blamed_codec > 0;
  if (is_codec_alone) trials_.begin(look_.blamed_codec, statistics_.rise(), statistics_.step());
  if (found == Found::kTrialOver) statistics_.begin_level(trials_.end());
  if (trials_.may_return(statistics_.step())) trials_.let_return();
  if ((found == Found::kWorse || found == Found::kRisen) && !is_codec_alone) {
    hold_.wait_steps = hold_.wait_steps == 0 ? kFirstWait : 2 * hold_.wait_steps;
    hold_.try_from_step = statistics_.step() + hold_.wait_steps;
    hold_.all |= found == Found::kRisen;
    doubt_ = Doubt::kAgainst;
  }
  if (hold_.all && statistics_.step() >= hold_.try_from_step) {
    hold_.all = false;
    statistics_.forget_level();
  }
}

plan::ConvergenceGuard::Choice PlanPreserver::prepare(const plan::PlanLimits& limits) {
  act_on_what_was_found();
  wanted_.clear();
  const auto walk = statistics_.walk(doubt_);
  hold_.waits = !walk && statistics_.is_told() && !statistics_.is_loss_alone();
  const plan::PlanLimits held = within_hold(limits);
  if (trials_.is_open()) return UnjudgedChoice{held, "the loss had risen: " + trials_.text()};
  if (hold_.all)
    return UnjudgedChoice{held, "the loss had risen; updates are fresh and gradients exact until step " +
                                    std::to_string(hold_.try_from_step)};
  if (!walk) return UnjudgedChoice{held, walk.error().message()};
  return JudgedChoice{held, *walk, statistics_.merge_scale(), epsilon_, patience_us_};
}

void PlanPreserver::follow(const plan::GuardedPlan& chosen) {
  decision_ = chosen.decision;
  wanted_ = chosen.refused;
  if (!decision_.judged) return;
  ratio_now_ = decision_.ratio;
  doubt_ = wanted_.empty() ? Doubt::kFor : Doubt::kAgainst;
}

plan::ReplanReason PlanPreserver::reconsider(const model::Plan& in_force) {
  updates_per_step_ = in_force.updates_per_step();
  if (most_codec(in_force) == 0) trials_.gradients_are_exact();
  if (statistics_.step() != look_.step) {
    look_.step = statistics_.step();
    look_.found = Found::kNothing;
    look_.reason = reason_to_change(in_force);
  }
  return {look_.reason, look_.found == Found::kRisen || look_.found == Found::kTrialOver};
}

std::string PlanPreserver::reason_to_change(const model::Plan& in_force) {
  const auto likely = statistics_.walk(Doubt::kNone);
  if (likely) judge_in_force(in_force, *likely);
  const bool late = in_force.is_late(), encoded = most_codec(in_force) > 0;
  if ((late || encoded) && statistics_.has_risen()) {
    look_.found = Found::kRisen;
    look_.blamed_codec = late ? 0 : most_codec(in_force);
    return "the Preserver: " + to_text(statistics_.rise()) + " under " + (late ? "late updates" : "encoded gradients");
  }
  if (trials_.result() != preserve::TrialResult::kOpen) {
    look_.found = Found::kTrialOver;
    return "the Preserver: " + trials_.text();
  }
  if (trials_.is_open() || (!likely && !statistics_.is_loss_alone())) return "";
  if (likely && decision_.accepted && late && !judge(in_force, statistics_.walk(Doubt::kFor).value()).accepted) {
    look_.found = Found::kWorse;
    return "the Preserver: it would train worse by now, with a ratio of " + std::to_string(ratio_now_);
  }
  if (statistics_.step() < hold_.try_from_step) return "";
  look_.found = Found::kTry;
  if (hold_.waits) return "the Preserver: the training is ready for late updates";
  if (hold_.all) return "the Preserver: late updates and encoded gradients can be tried again";
  if (trials_.may_return(statistics_.step()))
    return "the Preserver: the codec under which the loss rose can be tried again";
  if (likely && wants_another()) return "the Preserver: a plan that was refused would train as well by now";
  look_.found = Found::kNothing;
  return "";
}

void PlanPreserver::judge_in_force(const model::Plan& in_force, const preserve::Walk& likely) {
  ratio_now_ = judge(in_force, likely).ratio;
  if (decision_.judged || hold_.waits || hold_.all || trials_.is_open()) return;
  decision_.judged = true;  // followed before there were statistics; content with it, or it goes
  decision_.ratio = ratio_now_;
  decision_.note = "judged after it was chosen";
}

bool PlanPreserver::wants_another() const {
  const auto strict = statistics_.walk(Doubt::kAgainst).value();
  return std::ranges::any_of(wanted_, [&](const auto& plan) { return judge(plan, strict).accepted; });
}

nlohmann::json PlanPreserver::status() const {
  const auto walk = statistics_.walk(Doubt::kNone);
  nlohmann::json judgement = to_json(decision_);
  if (walk && decision_.judged) judgement["ratio_now"] = ratio_now_;
  if (!walk) judgement["note"] = walk.error().message();
  if (statistics_.step() < hold_.try_from_step) judgement["try_from_step"] = hold_.try_from_step;
  judgement["loss_has_risen"] = statistics_.has_risen();
  nlohmann::json json{{"epsilon", epsilon_},
                      {"statistics", statistics_.json()},
                      {"statistics_refused", statistics_.refused()},
                      {"judgement", std::move(judgement)}};
  if (!trials_.text().empty()) json["codecs"] = trials_.text();
  return json;
}

}  // namespace deft::daemon
