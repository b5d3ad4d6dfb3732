#include "core/sched/policy_chooser.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "core/base/policy_traits.h"
#include "core/sched/step_timer.h"

namespace deft::sched {
namespace {

constexpr double kGain = 0.01;       // of a step: less is not worth a change
constexpr double kClearGain = 0.02;  // what the forecast did not promise may be noise
constexpr double kDoubt = 0.03;      // forecasts err by so much
constexpr double kRoom = 0.02;       // of a step
constexpr double kForgotten = 0.9;   // what the waits of earlier steps count beside the newest step's

constexpr std::uint64_t kSmallRunBytes = 2 << 20;  // what fifo's own buckets hold by default

bool is_better(double us, double than_us, double gain = kGain) { return us < (1 - gain) * than_us; }

std::string in_ms(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", us / 1000);
  return text;
}

}  // namespace

void PolicyStopwatch::begin_anew() { restart(step_ + 1); }

void PolicyStopwatch::restart(std::uint64_t step) {
  steps_us_ = {};
  counts_from_ = step + kSettle;
  began_us_.reset();
}

void PolicyStopwatch::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  double& waited = stage == Stage::kForward ? waited_before_us_ : waited_in_forward_us_;
  waited = kForgotten * waited + static_cast<double>(waited_us);
  if (stage != Stage::kForward) return;
  if (began_us_ && step == step_ + 1) steps_us_.add(static_cast<double>(now_us - *began_us_));
  began_us_.reset();
  step_ = step;
  if (step >= counts_from_) began_us_ = now_us;
}

std::optional<double> PolicyStopwatch::usual_us() const {
  if (steps_us_.size() < kLeast) return std::nullopt;
  return lower_third({steps_us_.begin(), steps_us_.end()});
}

bool PolicyStopwatch::has_room() const {
  const auto step_us = usual_us();
  const double waited_us = (1 - kForgotten) * (waited_before_us_ + waited_in_forward_us_);
  return step_us && waited_us > kRoom * *step_us;
}

PolicyChooser::PolicyChooser(const Setup& setup, const PolicyChoice& start)
    : setup_(setup), watch_(setup.links.size()), choice_(start) {}

PolicyChoice PolicyChooser::first_choice() { return {"fifo", model::kDdpBucketBytes}; }

// If two choices are equal, the first one wins. So those with few launches come first.
std::vector<PolicyChoice> PolicyChooser::candidates() {
  std::vector<PolicyChoice> choices = {first_choice(), {"fifo", kSmallRunBytes}};
  for (const PolicyTraits& traits : kPolicyTraits)
    if (is_exact(traits) && traits.id != PolicyId::kAuto && traits.id != PolicyId::kFifo)
      choices.push_back({std::string(traits.name), 0});
  return choices;
}

void PolicyChooser::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  stopwatch_.stage_began(stage, step, now_us, waited_us);
  if (stage != Stage::kForward || pinned_ || change_) return;
  if (asked_ && forecasts_.empty()) {
    auto answer = setup_.selector->take();
    if (!answer) return;
    forecasts_ = *std::move(answer);
    refused_.clear();
    if (forecasts_.empty()) return settle(step);
  }
  if (trial_) return end_trial();
  if (!forecasts_.empty()) look_for_better(step);
}

// The choice with the best forecast that was not tried. If forecasts are equal, the choice with the fewest launches comes first, because
// the simulator does not know what launches cost the processors. Without a measured step there is no trial, and the forecasts alone decide.
const PolicyForecast* PolicyChooser::next_candidate(bool is_measured) const {
  if (refused_.size() >= kTries) return nullptr;
  const double most_us = (stopwatch_.has_room() ? 1 + kDoubt : 1 - kGain) * forecast_us(choice_);
  const PolicyForecast* best = nullptr;
  double equal_us = 0;
  for (const PolicyForecast& forecast : forecasts_) {
    if (std::ranges::find(refused_, forecast.choice) != refused_.end() || forecast.choice == choice_) continue;
    if (forecast.step_us > (best == nullptr ? most_us : equal_us)) break;
    if (best == nullptr) equal_us = std::min(most_us, (is_measured ? 1 + kGain : 1) * forecast.step_us);
    if (best == nullptr || forecast.launches_per_step < best->launches_per_step) best = &forecast;
  }
  return best;
}

double PolicyChooser::forecast_us(const PolicyChoice& choice) const {
  const auto found = std::ranges::find(forecasts_, choice, &PolicyForecast::choice);
  return found == forecasts_.end() ? std::numeric_limits<double>::infinity() : found->step_us;
}

void PolicyChooser::look_for_better(std::uint64_t step) {
  const auto before_us = stopwatch_.usual_us();
  if (!before_us && step > 0) return;  // not measured yet; before the first step there is nothing to measure
  const PolicyForecast* const next = next_candidate(before_us.has_value());
  if (next == nullptr) return settle(step);
  const bool is_first = refused_.empty() && asked_;
  const auto why = is_first && asked_->is_loss ? model::PolicyReason::kLinkLost : model::PolicyReason::kForecast;
  const bool is_promised = is_better(next->step_us, forecast_us(choice_));
  const std::string reason = (is_first ? asked_->reason + ": " : std::string()) + "the simulator expects " +
                             in_ms(next->step_us) + " a step, and " + in_ms(forecast_us(choice_)) + " with " +
                             to_text(choice_) + (is_promised ? "" : ", which is too close to know");
  asked_.reset();
  if (before_us) trial_ = Trial{choice_, *before_us, is_promised ? kGain : kClearGain};
  decide(next->choice, why, reason);
  change_->before_us = before_us;
  if (!before_us) forecasts_.clear();  // nothing can be compared
}

// There is nothing more to try for these forecasts.
void PolicyChooser::settle(std::uint64_t step) {
  if (asked_)
    decide(choice_, model::PolicyReason::kKept,
           asked_->reason + ": the simulator expects no other policy to be better");
  if (!refused_.empty()) {
    rests_until_ = step + rest_steps_;
    rest_steps_ *= 2;
  }
  asked_.reset();
  forecasts_.clear();
}

void PolicyChooser::end_trial() {
  if (stopwatch_.steps() < kTrialSteps) return;
  const double before_us = trial_->before_us, after_us = *stopwatch_.usual_us();
  const bool better = is_better(after_us, before_us, trial_->least_gain);
  const std::string reason =
      "a step takes " + in_ms(after_us) + ", and took " + in_ms(before_us) + " with " + to_text(trial_->before);
  if (better) {
    decide(choice_, model::PolicyReason::kConfirmed, "confirmed: " + reason);
    refused_.push_back(trial_->before);
    rest_steps_ = kRestSteps;
  } else {
    refused_.push_back(choice_);
    decide(trial_->before, model::PolicyReason::kNoBetter, to_text(choice_) + " was no better: " + reason);
  }
  change_->before_us = before_us;
  change_->after_us = after_us;
  trial_.reset();
}

void PolicyChooser::decide(const PolicyChoice& choice, model::PolicyReason why, std::string reason) {
  change_ = PolicyChange{.choice = choice, .reason = std::move(reason), .why = why, .forecasts = forecasts_};
}

void PolicyChooser::in_force(const PolicyChoice& choice, std::uint64_t step) {
  choice_ = choice;
  stopwatch_.restart(step);
}

bool PolicyChooser::wants_profile(std::uint64_t step) const {
  const bool is_busy = asked_ || trial_ || change_ || !forecasts_.empty();
  return setup_.selector != nullptr && !pinned_ && !is_busy && step >= rests_until_ && watch_.is_due(step);
}

void PolicyChooser::profile_measured(const model::Profile& profile, std::uint64_t step) {
  const auto reason = watch_.look(profile, step);
  if (!reason) return;
  watch_.decided(profile);
  asked_ = *reason;
  Setup asked_for = setup_;
  asked_for.selector = nullptr;  // a selector that keeps the question must not keep itself
  auto compared = candidates();
  if (std::ranges::find(compared, choice_) == compared.end()) compared.push_back(choice_);  // it may have tuned sizes
  // Sizes that the user has set stay.
  const bool tunes_sizes =
      !setup_.has_user_sizes && LaunchSizes{setup_.partition_bytes, setup_.credit_bytes} == LaunchSizes{};
  setup_.selector->ask({watch_.remaining(profile), std::move(asked_for), std::move(compared),
                        setup_.overlaps_forward.value_or(stopwatch_.overlaps_forward()), tunes_sizes});
}

// A change that was decided by forecasts alone, and is not in force yet. Without its trial nobody would compare it.
void PolicyChooser::drop_untested() {
  if (!change_) return;
  const bool is_untested =
      change_->why == model::PolicyReason::kForecast || change_->why == model::PolicyReason::kLinkLost;
  if (is_untested) change_.reset();
}

// Forecasts and measurements are of another network. The policy in force stays until there are new ones.
void PolicyChooser::link_lost(model::LinkIndex link) {
  watch_.link_lost(link);
  drop_untested();
  asked_.reset();
  forecasts_.clear();
  refused_.clear();
  trial_.reset();
  stopwatch_.begin_anew();
  rests_until_ = 0;
  rest_steps_ = kRestSteps;
}

void PolicyChooser::pin(const std::optional<PolicyChoice>& choice) {
  pinned_ = choice.has_value();
  forget();
  if (choice) decide(*choice, model::PolicyReason::kUser, "the user set it");
}

void PolicyChooser::sizes_changed(const LaunchSizes& sizes) {
  setup_.partition_bytes = sizes.partition_bytes;
  setup_.credit_bytes = sizes.credit_bytes;
  setup_.has_user_sizes = true;
  choice_.sizes.reset();
  if (change_) change_->choice.sizes.reset();
  forget();
}

void PolicyChooser::forget() {
  drop_untested();
  asked_.reset();
  forecasts_.clear();
  trial_.reset();
  rests_until_ = 0;
  if (!pinned_) watch_.forget();
}

}  // namespace deft::sched
