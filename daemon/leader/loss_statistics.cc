#include "daemon/leader/loss_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace deft::daemon {
namespace {

constexpr double kRateRose = 1.05;  // a learning rate so many times as high may make the loss rise

bool makes_sense(const wire::GradientStatistics& s, std::uint32_t world) {
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  return s.ranks > 0 && s.ranks <= world && amount(s.local_norms) && amount(s.average_norms) &&
         amount(s.learning_rate) && std::isfinite(s.target);
}

}  // namespace

void LossStatistics::take(std::size_t node, const wire::GradientStatistics& told, double updates_per_step) {
  const bool grows = node < newest_.size() && (!newest_[node] || newest_[node]->step < told.step);
  if (!grows || !makes_sense(told, world_)) {
    ++refused_;
    return;
  }
  newest_[node] = told;
  for (const auto& other : newest_)
    if (!other || other->step != told.step) return;
  combine(updates_per_step);
}

// The statistics of all nodes are those of one step.
void LossStatistics::combine(double updates_per_step) {
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
  const double workers = world_;
  const auto norms = preserve::norms_of_step(local / workers, average / workers, workers);
  if (ranks != world_ || !norms) {
    ++refused_;
    return;
  }
  if (std::isfinite(loss)) loss_alone_ = local == 0 && average == 0 && rate == 0;
  const auto scale = newest_.front()->merged_as_sums ? preserve::MergeScale::kSum : preserve::MergeScale::kMean;
  const Sample before = std::exchange(sample_, Sample{newest_.front()->step, loss / workers, rate, target, scale});
  // An update with k times the learning rate counts as k.
  const double ratio = scale == preserve::MergeScale::kSum ? 1 : updates_per_step;
  updates_ += ratio * static_cast<double>(sample_.step - before.step);
  told_ = true;
  if (is_finite()) take_sample(*norms);
}

void LossStatistics::take_sample(const preserve::Norms& norms) {
  of_level_.take(norms, updates_, sample_.loss);
  if (warmup_.over()) trend_.take(norms, updates_, sample_.loss);
  const double level = watch_.level();
  watch_.take(sample_.loss, of_level_);
  if (watch_.level() != level) rate_at_level_ = sample_.learning_rate;
  if (warmup_.over()) return;
  warmup_.take(sample_.step, sample_.loss, sample_.target);
  if (warmup_.over()) of_level_ = {};
}

preserve::Rise LossStatistics::rise() const {
  const bool rate_rose = sample_.learning_rate > kRateRose * rate_at_level_;
  const double to = is_finite() ? watch_.newest() : std::numeric_limits<double>::infinity();
  return {{watch_.level(), watch_.deviation()}, to, rate_rose || !warmup_.over()};
}

void LossStatistics::begin_level(const preserve::LossLevel& level) {
  of_level_ = {};
  watch_.begin_at(level.mean, level.deviation);
  rate_at_level_ = sample_.learning_rate;
}

Result<preserve::Walk> LossStatistics::walk(Doubt doubt) const {
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
  walk.target = sample_.target;
  walk.learning_rate = sample_.learning_rate;
  walk.gradient_norm = of(trend_.gradient());
  walk.gradient_mean = walk.learning_rate > 0 ? of(trend_.fall()) / walk.learning_rate : 0;
  if (walk.gradient_norm > 0)
    walk.gradient_deviation =
        std::min(1.0, walk.gradient_mean / walk.gradient_norm) * std::sqrt(walk.gradient_norm * trend_.noise().mean);
  if (auto ok = preserve::check_walk(walk); !ok) return tl::unexpected(ok.error());
  return walk;
}

nlohmann::json LossStatistics::json() const {
  if (trend_.samples() == 0) return nullptr;
  const auto gradient = trend_.gradient(), noise = trend_.noise(), fall = trend_.fall();
  nlohmann::json json{{"step", sample_.step},
                      {"samples", trend_.samples()},
                      {"loss", trend_.loss().mean},
                      {"target", sample_.target},
                      {"fall", fall.mean},  // of the loss, an update
                      {"merged_as_sums", sample_.scale == preserve::MergeScale::kSum}};
  if (std::isfinite(fall.error)) json["fall_error"] = fall.error;
  if (loss_alone_) return json;
  json["learning_rate"] = sample_.learning_rate;
  json["gradient"] = gradient.mean;
  json["noise"] = noise.mean;
  for (const auto& [name, value] : {std::pair{"gradient_error", gradient}, {"noise_error", noise}})
    if (std::isfinite(value.error)) json[name] = value.error;
  // In batches of all workers: up to about so many steps lose little when they are merged.
  if (gradient.mean > 0) json["noise_scale"] = noise.mean / gradient.mean;
  return json;
}

}  // namespace deft::daemon
