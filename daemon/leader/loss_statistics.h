// Collects what a group's workers measure of gradients and loss, and makes the walk (preserve/walk.h) by which a plan is judged.
//
//   LossStatistics statistics(world, nodes);
//   statistics.take(node, told, updates_per_step);   // each time that a node sends some
//   auto walk = statistics.walk(Doubt::kNone);       // an error says why there is none yet
//
// The statistics are those of preserve/trend.h, each with its standard error. The gain of an update is the measured fall of the
// loss, while the published model takes eta |G|^2. The relative error of the gain is taken to be that of |G|^2 if all noise lies
// in the direction of G. It cannot be larger. |G|^2 itself decides whether training tolerates staleness.
// The statistics begin after the first fast fall of the loss (preserve/loss_watch.h). Only has_risen() and rise() look at all samples.
// Reactor thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/preserve/codec_trials.h"
#include "core/preserve/loss_watch.h"
#include "core/preserve/preserver.h"
#include "core/preserve/trend.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

// Which of the likely values a plan is judged by: those that favour it, the most likely ones, those that speak against it.
enum class Doubt { kFor, kNone, kAgainst };

class LossStatistics {
 public:
  LossStatistics(std::uint32_t world, std::size_t nodes) : world_(world), newest_(nodes) {}

  // Values that make no sense are counted and left out. `updates_per_step` is that of the plan in force.
  void take(std::size_t node, const wire::GradientStatistics& told, double updates_per_step);

  [[nodiscard]] Result<preserve::Walk> walk(Doubt doubt) const;
  // The optimizer is no SGD: only the loss is told, and the walk is no model of its training.
  [[nodiscard]] bool is_loss_alone() const { return loss_alone_ && warmup_.over(); }
  [[nodiscard]] bool is_told() const { return told_; }  // of a loss
  [[nodiscard]] preserve::MergeScale merge_scale() const { return sample_.scale; }
  [[nodiscard]] std::uint64_t step() const { return sample_.step; }  // of the newest sample
  [[nodiscard]] double loss() const { return sample_.loss; }         // likewise
  [[nodiscard]] std::uint64_t samples() const { return trend_.samples(); }

  // One sample that is not finite is enough: a loss seldom comes back from there.
  [[nodiscard]] bool has_risen() const { return !is_finite() || watch_.risen(sample_.target); }
  [[nodiscard]] bool is_finite() const { return std::isfinite(sample_.loss); }
  [[nodiscard]] const preserve::LossWatch& watch() const { return watch_; }
  [[nodiscard]] preserve::Rise rise() const;  // if the loss has risen
  void forget_level() { watch_.forget(); }
  // From now on the loss has risen if it lies above `level`.
  void begin_level(const preserve::LossLevel& level);

  [[nodiscard]] nlohmann::json json() const;  // null: nothing since the warm-up
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  struct Sample {
    std::uint64_t step = 0;
    double loss = 0, learning_rate = 0, target = 0;
    preserve::MergeScale scale = preserve::MergeScale::kMean;
  };
  void combine(double updates_per_step);
  void take_sample(const preserve::Norms& norms);

  const std::uint32_t world_;
  std::vector<std::optional<wire::GradientStatistics>> newest_;  // by node
  preserve::WarmupDetector warmup_;
  preserve::Trend trend_;     // since the warm-up was over
  preserve::Trend of_level_;  // until then, from then on, and anew with a level that is known
  preserve::LossWatch watch_;
  double rate_at_level_ = 0;  // the learning rate when the loss was at its level
  Sample sample_;             // the newest; one that is not finite is in no trend
  double updates_ = 0;        // that were made until then: those of a mean byte
  bool told_ = false;
  bool loss_alone_ = false;
  std::uint64_t refused_ = 0;  // messages
};

}  // namespace deft::daemon
