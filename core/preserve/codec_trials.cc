#include "core/preserve/codec_trials.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/preserve/trend.h"

namespace deft::preserve {
namespace {

constexpr std::size_t kNewest = 3;       // samples whose mean can be the top of a rise
constexpr unsigned kMostDoublings = 10;  // of the first look

LossLevel level_of(std::span<const double> losses) {
  const double count = static_cast<double>(losses.size());
  const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / count;
  double squares = 0;
  for (const double loss : losses) squares += (loss - mean) * (loss - mean);
  return {mean, std::sqrt(squares / std::max(1.0, count - 1))};
}

}  // namespace

std::string to_text(const Rise& rise) {
  if (!std::isfinite(rise.to)) return "the loss became infinite or no number";
  return "the loss rose from " + std::to_string(rise.from.mean) + " to " + std::to_string(rise.to);
}

// The loss may rise on for some steps after gradients have become exact, because momentum holds older ones.
double CodecTrials::Trial::top() const {
  double top = rise.to;
  const std::size_t still_rising = std::max(kNewest, exact_samples() / 4);
  const std::span<const double> until = std::span(losses).first(*first_exact + still_rising);
  for (std::size_t i = 0; i + kNewest <= until.size(); ++i)
    top = std::max(top, level_of(until.subspan(i, kNewest)).mean);
  return top;
}

TrialResult CodecTrials::Trial::look() {
  const std::span<const double> exact = std::span(losses).subspan(*first_exact);
  const std::size_t half = exact.size() / 2;
  const double before = level_of(exact.first(half)).mean;
  now = level_of(exact.last(half));
  now.deviation = std::max(now.deviation, rise.from.deviation);
  // Half of the way back from infinity is no number. So a loss that was not finite has to come back to its level.
  const double half_way =
      std::isfinite(rise.to) ? (rise.from.mean + top()) / 2 : rise.from.mean + kErrors * rise.from.deviation;
  if (++looks == kLooks) return now.mean < half_way ? TrialResult::kHelped : TrialResult::kDidNotHelp;
  const double error = kErrors * now.deviation / std::sqrt(static_cast<double>(half));
  if (now.mean + error < half_way) return TrialResult::kHelped;
  // From the middle of one half to that of the other it is n/2, and to that of the newer half at the next look 3/4 n more.
  const double at_next_look = now.mean + 1.5 * (now.mean - before);
  if (now.mean - error > half_way && at_next_look > half_way) return TrialResult::kDidNotHelp;
  return TrialResult::kOpen;
}

std::uint64_t CodecTrials::first_look_steps() const { return kFirstLook << std::min(ended_, kMostDoublings); }

std::string CodecTrials::name(std::size_t codec) const {
  return codec < names_.size() ? names_[codec] : "codec " + std::to_string(codec);
}

void CodecTrials::begin(std::size_t codec, const Rise& rise, std::uint64_t step) {
  if (trial_) return;
  trial_ = Trial{codec, rise};
  text_ = name(codec) + " was taken back at step " + std::to_string(step) + ", because " + to_text(rise) +
          "; whether exact gradients help is not known yet";
}

void CodecTrials::gradients_are_exact() {
  if (trial_ && !trial_->first_exact) trial_->first_exact = trial_->losses.size();
}

void CodecTrials::take(std::uint64_t step, double loss) {
  if (!trial_ || trial_->result != TrialResult::kOpen) return;
  Trial& trial = *trial_;
  trial.losses.push_back(loss);
  trial.step = step;
  if (trial.exact_samples() == 0) return;
  if (trial.exact_samples() == 1) trial.exact_from_step = step;
  const bool is_due = step - trial.exact_from_step >= first_look_steps() << trial.looks &&
                      trial.exact_samples() >= kSamples << trial.looks;
  if (!is_due) return;
  trial.result = trial.look();
  if (trial.result != TrialResult::kOpen) text_ = describe_result();
}

bool CodecTrials::proves_it() const {
  return trial_->result == TrialResult::kHelped && trial_->rise.speaks_against_the_codec() &&
         (suspects_ >> trial_->codec & 1U) != 0;
}

std::string CodecTrials::describe_result() const {
  const Trial& trial = *trial_;
  const std::string codec = name(trial.codec);
  const std::string figures = to_text(trial.rise) + " under " + codec + ", and was " + std::to_string(trial.now.mean) +
                              " until step " + std::to_string(trial.step) + ", after " +
                              std::to_string(trial.step - trial.exact_from_step) + " steps without it";
  if (trial.result == TrialResult::kDidNotHelp)
    return "exact gradients did not help: " + figures + ", so " + codec + " comes back";
  if (proves_it())
    return "exact gradients helped again: " + figures + ", so " + codec + " stays away for the rest of the job";
  const std::string until = std::to_string(trial.step + kWaits * first_look_steps());
  if (!std::isfinite(trial.rise.to))
    return "the loss is back: " + figures + ", so " + codec + " may come back from step " + until + " on";
  if (!trial.rise.may_be_natural)
    return "exact gradients helped: " + figures + ", so " + codec + " stays away until step " + until +
           ", and for good if they help once more";
  return "exact gradients may have helped: " + figures +
         "; but the training had only begun or its learning rate rose, so " + codec + " may come back from step " +
         until + " on";
}

LossLevel CodecTrials::end() {
  const bool for_good = proves_it();
  const Trial trial = std::move(*trial_);
  trial_.reset();
  const bool helped = trial.result == TrialResult::kHelped;
  if (helped) most_ = std::min(most_, trial.codec - 1);
  if (helped && trial.rise.speaks_against_the_codec()) suspects_ |= std::uint32_t{1} << trial.codec;
  if (for_good) most_for_good_ = std::min(most_for_good_, trial.codec - 1);
  if (helped && !for_good) return_step_ = trial.step + kWaits * first_look_steps();
  if (!for_good) ++ended_;
  return trial.now;
}

void CodecTrials::let_return() {
  most_ = most_for_good_;
  return_step_ = 0;
}

}  // namespace deft::preserve
