#include "daemon/leader/plan_preserver.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::daemon {
namespace {

constexpr std::uint64_t kFirstWait = 64;  // steps until what was refused may be tried again; doubles each time

bool makes_sense(const wire::GradientStatistics& s, std::uint32_t world) {
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  return s.ranks > 0 && s.ranks <= world && amount(s.local_norms) && amount(s.average_norms) &&
         amount(s.learning_rate) && std::isfinite(s.loss) && std::isfinite(s.target);
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

void PlanPreserver::take(std::size_t node, const wire::GradientStatistics& statistics) {
  const bool grows = node < newest_.size() && (!newest_[node] || newest_[node]->step < statistics.step);
  if (!grows || !makes_sense(statistics, world_)) {
    ++refused_;
    return;
  }
  newest_[node] = statistics;
  for (const auto& other : newest_)
    if (!other || other->step != statistics.step) return;
  combine();
}

// The statistics of all nodes are those of one step.
void PlanPreserver::combine() {
  double local = 0, average = 0, loss = 0, rate = 0, target = 0;
  std::uint64_t ranks = 0;
  for (const auto& node : newest_) {
    ranks += node->ranks;
    local += node->local_norms;
    average += node->average_norms;
    loss += node->loss;
    rate = std::max(rate, node->learning_rate);
    target = std::max(target, node->target);
  }
  loss_alone_ = local == 0 && average == 0 && rate == 0;
  const double workers = world_;
  const auto norms = preserve::norms_of_step(local / workers, average / workers, workers);
  if (ranks != world_ || !norms || !std::isfinite(loss)) {
    ++refused_;
    return;
  }
  const std::uint64_t step = newest_.front()->step;
  merging_ = newest_.front()->merged_as_sums ? preserve::MergeScale::kSum : preserve::MergeScale::kMean;
  // An update with k times the learning rate counts as k.
  const double rhythm = merging_ == preserve::MergeScale::kSum ? 1 : updates_per_step_;
  updates_ += rhythm * static_cast<double>(step - step_);
  step_ = step;
  learning_rate_ = rate;
  target_ = target;
  told_ = true;
  if (!warmup_.over()) return warmup_.take(step, loss / workers, target);
  trend_.take(*norms, updates_, loss / workers);
  watch_.take(loss / workers, trend_);
}

// Of all that the statistics may mean what favours plans that merge and delay, or what speaks against them.
Result<preserve::Walk> PlanPreserver::walk(Doubt doubt) const {
  if (!told_)
    return fail(ErrorKind::kUnavailable, "no loss was reported", "call optimizer.report_loss(loss) on all ranks");
  if (!warmup_.over())
    return fail(ErrorKind::kUnavailable,
                "training has only begun: late updates wait until the first fall of the loss is over");
  if (loss_alone_)
    return fail(ErrorKind::kUnavailable, "the optimizer is no SGD: late updates are taken back where the loss rises");
  if (trend_.samples() < preserve::Trend::kLeast)
    return fail(ErrorKind::kUnavailable, "there are too few samples of the loss to judge by yet");
  const auto of = [doubt](const preserve::Value& value) {
    return std::max(0.0, doubt == Doubt::kFor ? value.low() : doubt == Doubt::kAgainst ? value.high() : value.mean);
  };
  preserve::Walk walk;
  walk.state = trend_.loss().mean;
  walk.target = target_;
  walk.learning_rate = learning_rate_;
  walk.gradient_norm = of(trend_.gradient());
  walk.gradient_mean = learning_rate_ > 0 ? of(trend_.fall()) / learning_rate_ : 0;
  if (walk.gradient_norm > 0)
    walk.gradient_deviation =
        std::min(1.0, walk.gradient_mean / walk.gradient_norm) * std::sqrt(walk.gradient_norm * trend_.noise().mean);
  if (auto ok = preserve::check_walk(walk); !ok) return tl::unexpected(ok.error());
  return walk;
}

preserve::Judgement PlanPreserver::judge(const model::Plan& plan, const preserve::Walk& walk) const {
  return preserve::judge(plan, walk, merging_, epsilon_, preserve::Staleness::kOfAlmostAllBytes);
}

plan::GuardedPlan PlanPreserver::chosen(model::Plan plan, const preserve::Judgement& judgement,
                                        const preserve::Request& request, unsigned attempts, std::string note) {
  decision_ = {true,     judgement.accepted, judgement.ratio, request.capacity, request.max_staleness_steps,
               attempts, std::move(note)};
  ratio_now_ = judgement.ratio;
  doubt_ = wanted_.empty() ? Doubt::kFor : Doubt::kAgainst;
  return {std::move(plan), decision_};
}

// Where no loss is told nobody asks for a judgement; where one is, what cannot be judged yet keeps its updates fresh, and
// what never can be is followed.
Result<plan::GuardedPlan> PlanPreserver::unjudged(const Make& make, plan::Limits limits, std::string why) {
  if (waits_ || fresh_) limits.max_staleness_steps = 0;
  auto plan = make(limits);
  if (!plan) return tl::unexpected(plan.error());
  decision_ = {false, true, 1, limits.capacity, limits.max_staleness_steps, 1, std::move(why)};
  return plan::GuardedPlan{std::move(*plan), decision_};
}

// Why another plan is asked for may be what the last look found, or something else meanwhile.
void PlanPreserver::act_on_what_was_found() {
  const Found found = std::exchange(found_, Found::kNothing);
  reconsidered_ = trend_.samples();
  reason_.clear();
  if (found == Found::kWorse || found == Found::kRisen) {
    wait_ = wait_ == 0 ? kFirstWait : 2 * wait_;
    try_from_ = step_ + wait_;
    doubt_ = Doubt::kAgainst;
  }
  if (found == Found::kRisen) fresh_ = true;
  if (fresh_ && step_ >= try_from_) {
    fresh_ = false;
    watch_.forget();
  }
}

Result<plan::GuardedPlan> PlanPreserver::choose(const Make& make, const plan::Limits& limits) {
  act_on_what_was_found();
  wanted_.clear();
  const auto walk = this->walk(doubt_);
  waits_ = !walk && told_ && !judges_by_loss_alone();
  if (fresh_)
    return unjudged(make, limits, "the loss had risen; late again from step " + std::to_string(try_from_) + " on");
  if (!walk) return unjudged(make, limits, walk.error().message());
  return judged(make, limits, *walk);
}

Result<plan::GuardedPlan> PlanPreserver::judged(const Make& make, const plan::Limits& limits,
                                                const preserve::Walk& walk) {
  const TimeUs deadline = MonotonicClock::now() + patience_us_;
  std::optional<model::Plan> last;
  preserve::Request asked{limits.capacity, limits.max_staleness_steps};
  unsigned attempts = 0;
  const auto planner = [&](const preserve::Request& request) -> Result<model::Plan> {
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
  auto preserved = preserve::preserve(planner, walk, asked, merging_, epsilon_, preserve::Staleness::kOfAlmostAllBytes);
  if (preserved)
    return chosen(std::move(preserved->plan), preserved->judgement, preserved->request, preserved->attempts, "");
  if (!last) return tl::unexpected(preserved.error());
  const auto judgement = judge(*last, walk);
  return chosen(std::move(*last), judgement, asked, attempts, preserved.error().what);
}

plan::ReplanReason PlanPreserver::reconsider(const model::Plan& in_force) {
  updates_per_step_ = in_force.updates_per_step();
  if (trend_.samples() != reconsidered_) {
    reconsidered_ = trend_.samples();
    found_ = Found::kNothing;
    reason_ = reason_to_change(in_force);
  }
  return {reason_, found_ == Found::kRisen};
}

std::string PlanPreserver::reason_to_change(const model::Plan& in_force) {
  const auto likely = walk(Doubt::kNone);
  if (!likely && !judges_by_loss_alone()) return "";
  if (likely) judge_in_force(in_force, *likely);
  const bool late = in_force.max_staleness() > 0 || in_force.max_merged() > 1;
  if (late && watch_.risen(target_)) {
    found_ = Found::kRisen;
    return "the Preserver: the loss rose from " + std::to_string(watch_.level()) + " to " +
           std::to_string(watch_.newest()) + " under late updates";
  }
  if (likely && decision_.accepted && late && !judge(in_force, walk(Doubt::kFor).value()).accepted) {
    found_ = Found::kWorse;
    return "the Preserver: it would train worse by now, with a ratio of " + std::to_string(ratio_now_);
  }
  if (step_ < try_from_) return "";
  found_ = Found::kTry;
  if (waits_) return "the Preserver: the training is ready for late updates";
  if (fresh_) return "the Preserver: late updates can be tried again";
  if (likely && wants_another()) return "the Preserver: a plan that was refused would train as well by now";
  found_ = Found::kNothing;
  return "";
}

void PlanPreserver::judge_in_force(const model::Plan& in_force, const preserve::Walk& likely) {
  ratio_now_ = judge(in_force, likely).ratio;
  if (decision_.judged || waits_ || fresh_) return;
  decision_.judged = true;  // followed before there were statistics; content with it, or it goes
  decision_.ratio = ratio_now_;
  decision_.note = "judged after it was chosen";
}

bool PlanPreserver::wants_another() const {
  const auto strict = walk(Doubt::kAgainst).value();
  return std::ranges::any_of(wanted_, [&](const auto& plan) { return judge(plan, strict).accepted; });
}

nlohmann::json PlanPreserver::statistics() const {
  if (trend_.samples() == 0) return nullptr;  // none since the onset
  const auto gradient = trend_.gradient(), noise = trend_.noise(), fall = trend_.fall();
  nlohmann::json json{{"step", step_},
                      {"samples", trend_.samples()},
                      {"loss", trend_.loss().mean},
                      {"target", target_},
                      {"fall", fall.mean},  // of the loss, an update
                      {"merged_as_sums", merging_ == preserve::MergeScale::kSum}};
  if (std::isfinite(fall.error)) json["fall_error"] = fall.error;
  if (loss_alone_) return json;
  json["learning_rate"] = learning_rate_;
  json["gradient"] = gradient.mean;
  json["noise"] = noise.mean;
  for (const auto& [name, value] : {std::pair{"gradient_error", gradient}, {"noise_error", noise}})
    if (std::isfinite(value.error)) json[name] = value.error;
  // In batches of all workers: up to about so many steps lose little when they are merged.
  if (gradient.mean > 0) json["noise_scale"] = noise.mean / gradient.mean;
  return json;
}

nlohmann::json PlanPreserver::status() const {
  const auto walk = this->walk(Doubt::kNone);
  nlohmann::json judgement = to_json(decision_);
  if (walk && decision_.judged) judgement["ratio_now"] = ratio_now_;
  if (!walk) judgement["note"] = walk.error().message();
  if (step_ < try_from_) judgement["try_from_step"] = try_from_;
  judgement["loss_has_risen"] = watch_.risen(target_);
  return {{"epsilon", epsilon_},
          {"statistics", statistics()},
          {"statistics_refused", refused_},
          {"judgement", std::move(judgement)}};
}

}  // namespace deft::daemon
