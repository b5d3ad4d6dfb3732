#include "daemon/plan_preserver.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::daemon {
namespace {

constexpr double kNewestWeighs = 0.2;  // in the moving averages, once there are enough

bool makes_sense(const proto::GradientStatistics& s, std::uint32_t world) {
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  return s.ranks() > 0 && s.ranks() <= world && amount(s.local_norms()) && amount(s.average_norms()) &&
         amount(s.learning_rate()) && std::isfinite(s.loss()) && std::isfinite(s.target());
}

}  // namespace

nlohmann::json to_json(const sched::Verdict& verdict) {
  nlohmann::json json{{"judged", verdict.judged},
                      {"accepted", verdict.accepted},
                      {"capacity", verdict.capacity},
                      {"max_staleness_steps", verdict.max_staleness_steps},
                      {"attempts", verdict.attempts}};
  if (verdict.judged) json["ratio"] = verdict.ratio;
  if (!verdict.note.empty()) json["note"] = verdict.note;
  return json;
}

void PlanPreserver::take(std::size_t node, const proto::GradientStatistics& statistics) {
  const bool grows = node < newest_.size() && (!newest_[node] || newest_[node]->step() < statistics.step());
  if (!grows || !makes_sense(statistics, world_)) {
    ++refused_;
    return;
  }
  newest_[node] = statistics;
  for (const auto& other : newest_)
    if (!other || other->step() != statistics.step()) return;
  combine();
}

// The statistics of all nodes are those of one step.
void PlanPreserver::combine() {
  double local = 0, average = 0, loss = 0, rate = 0, target = 0;
  std::uint64_t ranks = 0;
  for (const auto& node : newest_) {
    ranks += node->ranks();
    local += node->local_norms();
    average += node->average_norms();
    loss += node->loss();
    rate = std::max(rate, node->learning_rate());
    target = std::max(target, node->target());
  }
  const double workers = world_;
  const double gradient = (average - local / workers) / (workers - 1);  // the sums are `workers` times the means
  const double noise = std::max(0.0, (local - average) / workers / (workers - 1));
  if (ranks != world_ || world_ < 2 || !std::isfinite(gradient) || !std::isfinite(noise) || !std::isfinite(loss)) {
    ++refused_;
    return;
  }
  const double weight = std::max(kNewestWeighs, 1.0 / static_cast<double>(++samples_));
  const auto follow = [weight](double& value, double newest) { value += weight * (newest - value); };
  follow(averages_.gradient, gradient);
  follow(averages_.noise, noise);
  follow(averages_.loss, loss / workers);
  averages_.step = newest_.front()->step();
  averages_.learning_rate = rate;
  averages_.target = target;
  averages_.merging = newest_.front()->merged_as_sums() ? preserve::Merging::kSum : preserve::Merging::kMean;
}

Result<preserve::Walk> PlanPreserver::walk() const {
  if (samples_ == 0)
    return fail(ErrorKind::kUnavailable, "no loss was reported", "call optimizer.report_loss(loss) on all ranks");
  if (averages_.gradient <= 0) return fail(ErrorKind::kUnavailable, "the gradient cannot be told from its noise yet");
  preserve::Walk walk;
  walk.state = averages_.loss;
  walk.target = averages_.target;
  walk.learning_rate = averages_.learning_rate;
  walk.gradient_mean = averages_.gradient;
  walk.gradient_deviation = std::sqrt(walk.gradient_mean * averages_.noise);
  if (auto ok = preserve::check_walk(walk); !ok) return tl::unexpected(ok.error());
  return walk;
}

sched::JudgedPlan PlanPreserver::chosen(model::Plan plan, const preserve::Judgement& judgement,
                                        const preserve::Request& request, unsigned attempts, std::string note) {
  verdict_ = {true,     judgement.accepted, judgement.ratio, request.capacity, request.max_staleness_steps,
              attempts, std::move(note)};
  ratio_now_ = judgement.ratio;
  return {std::move(plan), verdict_};
}

// Where no loss is told nobody asks for a judgement; where one is, what cannot be judged yet keeps its updates fresh.
Result<sched::JudgedPlan> PlanPreserver::unjudged(const Make& make, sched::PlanLimits limits, std::string why) {
  if (waits_) limits.max_staleness_steps = 0;
  auto plan = make(limits);
  if (!plan) return tl::unexpected(plan.error());
  verdict_ = {false, true, 1, limits.capacity, limits.max_staleness_steps, 1, std::move(why)};
  return sched::JudgedPlan{std::move(*plan), verdict_};
}

Result<sched::JudgedPlan> PlanPreserver::choose(const Make& make, const sched::PlanLimits& limits) {
  first_.reset();
  reconsidered_ = samples_;
  reason_.clear();
  const auto walk = this->walk();
  waits_ = !walk && samples_ > 0;
  if (!walk) return unjudged(make, limits, walk.error().message());
  const TimeUs deadline = MonotonicClock::now() + patience_us_;
  std::optional<model::Plan> last;
  preserve::Request asked{limits.capacity, limits.max_staleness_steps};
  unsigned attempts = 0;
  const auto planner = [&](const preserve::Request& request) -> Result<model::Plan> {
    if (last && MonotonicClock::now() > deadline)
      return fail(ErrorKind::kTimeout, "there was no time to try more plans");
    sched::PlanLimits stricter = limits;
    stricter.capacity = request.capacity;
    stricter.max_staleness_steps = request.max_staleness_steps;
    auto plan = make(stricter);
    if (!plan) return plan;
    if (!last) first_ = *plan;
    last = *plan;
    asked = request;
    ++attempts;
    return plan;
  };
  auto preserved = preserve::preserve(planner, *walk, asked, averages_.merging, epsilon_);
  if (preserved && preserved->attempts == 1 && preserved->judgement.accepted) first_.reset();
  if (preserved)
    return chosen(std::move(preserved->plan), preserved->judgement, preserved->request, preserved->attempts, "");
  if (!last) return tl::unexpected(preserved.error());
  const auto judgement = preserve::judge(*last, *walk, averages_.merging, epsilon_);
  return chosen(std::move(*last), judgement, asked, attempts, preserved.error().what);
}

std::string PlanPreserver::reconsider(const model::Plan& in_force) {
  if (samples_ == reconsidered_) return reason_;
  reconsidered_ = samples_;
  reason_ = reason_to_change(in_force);
  return reason_;
}

std::string PlanPreserver::reason_to_change(const model::Plan& in_force) {
  const auto walk = this->walk();
  if (!walk) return "";
  if (waits_) return "the Preserver: plans with late updates can be judged now";
  const auto now = preserve::judge(in_force, *walk, averages_.merging, epsilon_);
  ratio_now_ = now.ratio;
  if (!verdict_.judged) {  // followed before there were statistics; content with it, or it goes
    verdict_.judged = true;
    verdict_.ratio = now.ratio;
    verdict_.note = "judged after it was chosen";
  }
  if (verdict_.accepted && !now.accepted)
    return "the Preserver: it would train worse by now, with a ratio of " + std::to_string(now.ratio);
  if (first_ && preserve::judge(*first_, *walk, averages_.merging, epsilon_ / 2).accepted)
    return "the Preserver: a plan that was refused would train as well by now";
  return "";
}

nlohmann::json PlanPreserver::statistics() const {
  if (samples_ == 0) return nullptr;
  nlohmann::json json{{"step", averages_.step},
                      {"samples", samples_},
                      {"loss", averages_.loss},
                      {"target", averages_.target},
                      {"learning_rate", averages_.learning_rate},
                      {"gradient", averages_.gradient},
                      {"noise", averages_.noise},
                      {"merged_as_sums", averages_.merging == preserve::Merging::kSum}};
  // In batches of all workers: up to about so many steps lose little when they are merged.
  if (averages_.gradient > 0) json["noise_scale"] = averages_.noise / averages_.gradient;
  return json;
}

nlohmann::json PlanPreserver::status() const {
  const auto walk = this->walk();
  nlohmann::json judgement = to_json(verdict_);
  if (walk && verdict_.judged) judgement["ratio_now"] = ratio_now_;
  if (!walk) judgement["note"] = walk.error().message();
  return {{"epsilon", epsilon_},
          {"statistics", statistics()},
          {"statistics_refused", refused_},
          {"judgement", std::move(judgement)}};
}

}  // namespace deft::daemon
