// Decides for the policy `auto` which exact policy is in force: simulates, tries, measures, and goes back if it was no better.
//
//   PolicyChooser chooser(setup, start);
//   chooser.stage_began(stage, step, now_us, waited_us);        // the events of Scheduler
//   if (chooser.wants_profile(step)) chooser.profile_measured(profile, step);
//   if (auto change = chooser.take_change()) {                  // at the begin of backward
//     ...                                                       // change->choice is in force from this step on
//     chooser.in_force(change->choice, step);
//   }
//
// It asks the selector (policy_selector.h) once it has a profile, and again whenever the profile has moved (profile_watch.h). The
// selector may answer with other sizes of parts and credit, too, as long as the user has set none. It tries the best candidate that may
// be better. Its forecast is at most 3 % above that of the policy in force, because forecasts err by that much; if workers hardly wait,
// it must be 1 % below. After kTrialSteps it compares the measured time of a step with that of before. If less than 1 % was gained, or
// 2 % if the forecast promised nothing, it goes back. Then it tries the next best candidate; at most kTries are no better for one
// profile. After each round of trials it rests. If nothing was better, the next rest is twice as long. Pure and not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/sched/policy_selector.h"
#include "core/sched/profile_watch.h"
#include "core/sched/recent.h"

namespace deft::sched {

// Measures the time of a step with its waiting, for the policy in force.
class PolicyStopwatch {
 public:
  static constexpr std::size_t kLeast = 8;     // steps that a comparison needs
  static constexpr std::uint64_t kSettle = 2;  // the first steps of a policy, which do not count

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  // The steps of before the newest one say nothing any more, because the network is another one.
  void begin_anew();
  // A policy is in force from `step` on.
  void restart(std::uint64_t step);
  [[nodiscard]] std::size_t steps() const { return steps_us_.count(); }
  // The usual time of a step; nothing before kLeast steps.
  [[nodiscard]] std::optional<double> usual_us() const;
  // Workers wait for updates for so much of a step that another policy may win something.
  [[nodiscard]] bool has_room() const;
  // Workers wait for updates in the course of forward, and not before it.
  [[nodiscard]] bool overlaps_forward() const { return waited_before_us_ <= waited_in_forward_us_; }

 private:
  Recent<double, 24> steps_us_;
  std::uint64_t counts_from_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> began_us_;
  double waited_before_us_ = 0, waited_in_forward_us_ = 0;  // older steps count less and less
};

class PolicyChooser {
 public:
  static constexpr std::size_t kTrialSteps = 12;
  static constexpr std::size_t kTries = 4;
  static constexpr std::uint64_t kRestSteps = 32;

  // `setup.selector` may be null: then only the user changes the policy.
  PolicyChooser(const Setup& setup, const PolicyChoice& start);

  // What `auto` chooses among.
  [[nodiscard]] static std::vector<PolicyChoice> candidates();
  // How `auto` begins: as DDP, with buckets of 25 MB in the order of readiness.
  [[nodiscard]] static PolicyChoice first_choice();

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  [[nodiscard]] bool wants_profile(std::uint64_t step) const;
  void profile_measured(const model::Profile& profile, std::uint64_t step);
  void link_lost(model::LinkIndex link);

  // The user's choice, which stays. Nothing: Deft chooses again.
  void pin(const std::optional<PolicyChoice>& choice);
  // The user's sizes are in force, and stay. Earlier simulations and measurements do not count any more.
  void sizes_changed(const LaunchSizes& sizes);
  // The policy in force stays until pin() is called.
  void keep() { pinned_ = true; }

  // The decision since the last call, if there was one.
  std::optional<PolicyChange> take_change() { return std::exchange(change_, std::nullopt); }
  void in_force(const PolicyChoice& choice, std::uint64_t step);

 private:
  struct Trial {
    PolicyChoice before;
    double before_us = 0;
    double least_gain = 0;  // of a step, as a share
  };

  void forget();
  void drop_untested();
  void look_for_better(std::uint64_t step);
  void end_trial();
  void settle(std::uint64_t step);
  void decide(const PolicyChoice& choice, model::PolicyReason why, std::string reason);
  [[nodiscard]] const PolicyForecast* next_candidate(bool is_measured) const;
  [[nodiscard]] double forecast_us(const PolicyChoice& choice) const;

  Setup setup_;
  PolicyStopwatch stopwatch_;
  ProfileWatch watch_;
  PolicyChoice choice_;  // in force
  bool pinned_ = false;
  std::optional<plan::ReplanReason> asked_;  // why the selector was asked
  std::vector<PolicyForecast> forecasts_;    // the newest, until there is nothing more to try
  std::vector<PolicyChoice> refused_;        // were in force for these forecasts, and no better
  std::optional<Trial> trial_;
  std::optional<PolicyChange> change_;
  std::uint64_t rests_until_ = 0, rest_steps_ = kRestSteps;
};

}  // namespace deft::sched
