// A scheduler whose policy and sizes change between steps: for the policy `auto`, and for `deft set`.
//
//   auto scheduler = SwitchingScheduler::make(setup);       // begins with setup.policy; `auto` begins as DDP
//   (*scheduler)->change_settings({.policy = "bytescheduler", .credit_bytes = 1 << 20});   // from the next step on
//
// It owns the policy in force. A change begins with the first event of a step's backward: the buckets of that step and of later
// steps go to the new policy, those of earlier steps stay with the old one, which lives until all of them are reduced. So each
// bucket of each step belongs to one policy, and a change loses and doubles nothing. At that moment the launches of the old
// policy have usually ended, because forward has needed its updates; if not, they go first.
//
// Only exact policies change: their updates are due at the same steps, so replicas stay equal whatever is in force. Launch ids
// count over all policies. Pure and not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/sched/policy_chooser.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class SwitchingScheduler final : public Scheduler {
 public:
  static Result<std::unique_ptr<SwitchingScheduler>> make(const Setup& setup);

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) override;
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  void part_finished(const Launch& launch, TimeUs now_us) override;
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override;
  void link_lost(model::LinkIndex link) override;
  void slowest_step_measured(double us) override { current().slowest_step_measured(us); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs now_us) override;
  [[nodiscard]] bool wants_profile(std::uint64_t step) const override;
  std::vector<Launch> take_launches(TimeUs now_us) override;
  std::vector<Update> take_updates() override;
  std::optional<BucketFusion> take_fusion() override;
  // kInvalid for a policy that delays updates, or that only the simulator runs, and for sizes that no policy can have.
  Result<void> change_settings(const SettingsChange& change) override;
  [[nodiscard]] Result<void> check_change(const SettingsChange& change) const override;
  std::optional<PolicyChange> take_policy_change() override;

 private:
  // A policy, and the steps whose buckets are its own: from `begins` to the next era's.
  struct Era {
    std::uint64_t number = 0;
    std::uint64_t begins = 0;
    PolicyChoice choice;
    LaunchSizes sizes;
    std::unique_ptr<Scheduler> scheduler;
    std::uint64_t reduced_bytes = 0;
    bool is_fusion_told = false;  // to take_fusion(): what goes together in this era, or nothing
  };
  struct InFlight {
    std::uint64_t era = 0;
    std::uint64_t id = 0;  // of the era's own count
  };

  explicit SwitchingScheduler(const Setup& setup, const PolicyChoice& start);
  [[nodiscard]] Scheduler& current() const { return *eras_.back().scheduler; }
  Result<std::unique_ptr<Scheduler>> make_policy(const PolicyChoice& choice, const LaunchSizes& own_sizes) const;
  void backward_of(std::uint64_t step, TimeUs now_us);
  // False: the policy cannot be made, and the one in force stays.
  bool begin_era(const PolicyChoice& choice, std::uint64_t step, TimeUs now_us);
  void drop_finished_eras();

  Setup setup_;                 // with the links as they are measured
  std::vector<bool> lost_;      // [link]
  LaunchSizes sizes_;           // that the user wants from the next step on
  bool has_new_sizes_ = false;  // the user has named sizes since the newest step began, perhaps those in force
  PolicyChooser chooser_;
  std::deque<Era> eras_;  // the last one is in force
  std::uint64_t eras_begun_ = 0;
  std::map<std::uint64_t, InFlight> in_flight_;  // by the id that the driver knows
  std::uint64_t launches_ = 0;
  std::uint64_t reached_ = 0;              // one more than the newest step whose backward has begun
  std::optional<model::Profile> profile_;  // the newest
  std::deque<PolicyChange> changes_;       // that were not taken yet
};

}  // namespace deft::sched
