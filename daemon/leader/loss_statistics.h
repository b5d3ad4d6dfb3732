// What a group's workers tell of their gradients and of the loss, and the walk (preserve/walk.h) that a plan is judged by.
//
//   LossStatistics statistics(world, nodes);
//   statistics.take(node, told, updates_per_step);   // each time that a node sends some
//   auto walk = statistics.walk(Doubt::kNone);       // an error says why there is none yet
//
// The statistics are those of preserve/trend.h, each with its standard error. An update gains what the loss really loses by
// an update, where the published model takes eta |G|^2. That gain scatters by as large a share of itself as |G|^2 does by
// noise in the direction of G, which is the most that it can. |G|^2 itself decides whether staleness can be borne.
// They begin after the first fast fall of the loss (preserve/loss_watch.h). Only has_risen() and rise() look at all samples.
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

  // What makes no sense is counted and left out. `updates_per_step`: of the plan in force.
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
