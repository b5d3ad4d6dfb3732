#include "daemon/leader/plan_preserver.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::daemon {
namespace {

constexpr std::uint64_t kFirstWait = 64;  // steps until what was refused may be tried again; doubles each time

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

plan::GuardedPlan PlanPreserver::chosen(model::Plan plan, const preserve::Judgement& judgement,
                                        const preserve::PlanRequest& request, unsigned attempts, std::string note) {
  decision_ = {true,     judgement.accepted, judgement.ratio, request.capacity, request.max_staleness_steps,
               attempts, std::move(note)};
  ratio_now_ = judgement.ratio;
  doubt_ = wanted_.empty() ? Doubt::kFor : Doubt::kAgainst;
  return {std::move(plan), decision_};
}

// Where no loss is told nobody asks for a judgement; where one is, what cannot be judged yet keeps its updates fresh, and
// what never can be is followed.
Result<plan::GuardedPlan> PlanPreserver::unjudged(const Make& make, plan::Limits limits, std::string why) {
  if (hold_.waits || hold_.fresh) limits.max_staleness_steps = 0;
  auto plan = make(limits);
  if (!plan) return tl::unexpected(plan.error());
  decision_ = {false, true, 1, limits.capacity, limits.max_staleness_steps, 1, std::move(why)};
  return plan::GuardedPlan{std::move(*plan), decision_};
}

// Why another plan is asked for may be what the last look found, or something else meanwhile.
void PlanPreserver::act_on_what_was_found() {
  const Found found = std::exchange(look_.found, Found::kNothing);
  look_.samples = statistics_.samples();
  look_.reason.clear();
  if (found == Found::kWorse || found == Found::kRisen) {
    hold_.wait_steps = hold_.wait_steps == 0 ? kFirstWait : 2 * hold_.wait_steps;
    hold_.try_from_step = statistics_.step() + hold_.wait_steps;
    doubt_ = Doubt::kAgainst;
  }
  if (found == Found::kRisen) hold_.fresh = true;
  if (hold_.fresh && statistics_.step() >= hold_.try_from_step) {
    hold_.fresh = false;
    statistics_.forget_level();
  }
}

Result<plan::GuardedPlan> PlanPreserver::choose(const Make& make, const plan::Limits& limits) {
  act_on_what_was_found();
  wanted_.clear();
  const auto walk = statistics_.walk(doubt_);
  hold_.waits = !walk && statistics_.is_told() && !statistics_.is_loss_alone();
  if (hold_.fresh)
    return unjudged(make, limits,
                    "the loss had risen; late again from step " + std::to_string(hold_.try_from_step) + " on");
  if (!walk) return unjudged(make, limits, walk.error().message());
  return judged(make, limits, *walk);
}

Result<plan::GuardedPlan> PlanPreserver::judged(const Make& make, const plan::Limits& limits,
                                                const preserve::Walk& walk) {
  const TimeUs deadline = MonotonicClock::now() + patience_us_;
  std::optional<model::Plan> last;
  preserve::PlanRequest asked{limits.capacity, limits.max_staleness_steps};
  unsigned attempts = 0;
  const auto planner = [&](const preserve::PlanRequest& request) -> Result<model::Plan> {
    if (last && MonotonicClock::now() > deadline)
      return fail(ErrorKind::kTimeout, "there was no time to try more plans");
    plan::Limits stricter = limits;
    stricter.capacity = request.capacity;
    stricter.max_staleness_steps = request.max_staleness_steps;
    auto plan = make(stricter);
    if (!plan) return plan;
    if (last) wanted_.push_back(*last);
    last = *plan;
    asked = request;
    ++attempts;
    return plan;
  };
  auto preserved = preserve::preserve(planner, walk, asked, statistics_.merge_scale(), epsilon_,
                                      preserve::Staleness::kOfAlmostAllBytes);
  if (preserved)
    return chosen(std::move(preserved->plan), preserved->judgement, preserved->request, preserved->attempts, "");
  if (!last) return tl::unexpected(preserved.error());
  const auto judgement = judge(*last, walk);
  return chosen(std::move(*last), judgement, asked, attempts, preserved.error().what);
}

plan::ReplanReason PlanPreserver::reconsider(const model::Plan& in_force) {
  updates_per_step_ = in_force.updates_per_step();
  if (statistics_.samples() != look_.samples) {
    look_.samples = statistics_.samples();
    look_.found = Found::kNothing;
    look_.reason = reason_to_change(in_force);
  }
  return {look_.reason, look_.found == Found::kRisen};
}

std::string PlanPreserver::reason_to_change(const model::Plan& in_force) {
  const auto likely = statistics_.walk(Doubt::kNone);
  if (!likely && !statistics_.is_loss_alone()) return "";
  if (likely) judge_in_force(in_force, *likely);
  const bool late = in_force.max_staleness() > 0 || in_force.max_merged() > 1;
  if (late && statistics_.has_risen()) {
    look_.found = Found::kRisen;
    return "the Preserver: the loss rose from " + std::to_string(statistics_.watch().level()) + " to " +
           std::to_string(statistics_.watch().newest()) + " under late updates";
  }
  if (likely && decision_.accepted && late && !judge(in_force, statistics_.walk(Doubt::kFor).value()).accepted) {
    look_.found = Found::kWorse;
    return "the Preserver: it would train worse by now, with a ratio of " + std::to_string(ratio_now_);
  }
  if (statistics_.step() < hold_.try_from_step) return "";
  look_.found = Found::kTry;
  if (hold_.waits) return "the Preserver: the training is ready for late updates";
  if (hold_.fresh) return "the Preserver: late updates can be tried again";
  if (likely && wants_another()) return "the Preserver: a plan that was refused would train as well by now";
  look_.found = Found::kNothing;
  return "";
}

void PlanPreserver::judge_in_force(const model::Plan& in_force, const preserve::Walk& likely) {
  ratio_now_ = judge(in_force, likely).ratio;
  if (decision_.judged || hold_.waits || hold_.fresh) return;
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
  return {{"epsilon", epsilon_},
          {"statistics", statistics_.json()},
          {"statistics_refused", statistics_.refused()},
          {"judgement", std::move(judgement)}};
}

}  // namespace deft::daemon
