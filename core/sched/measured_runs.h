// The base of policies that choose their runs by measured times. They begin with other runs, choose once they have a profile, and
// choose anew when the profile has moved or a link is lost.
#pragma once

#include <optional>
#include <utility>

#include "core/sched/profile_watch.h"
#include "core/sched/run_scheduler.h"

namespace deft::sched {

class MeasuredRuns : public RunScheduler {
 public:
  // `first`: the runs until there is a profile.
  MeasuredRuns(const Setup& setup, RunStarts first)
      : RunScheduler(setup, std::move(first)), watch_(setup.links.size(), true) {}

  void link_lost(model::LinkIndex link) override {
    RunScheduler::link_lost(link);
    watch_.link_lost(link);
  }
  [[nodiscard]] bool wants_profile(std::uint64_t step) const override { return watch_.is_due(step); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) override {
    auto reason = watch_.look(profile, step);
    if (!reason) return;
    watch_.decided(profile);
    auto chosen = choose(watch_.remaining(profile));
    if (chosen == starts()) return;
    fusion_ = BucketFusion{step, chosen, std::move(reason->reason)};
    change_runs(std::move(chosen));
  }
  std::optional<BucketFusion> take_fusion() override { return std::exchange(fusion_, std::nullopt); }

 protected:
  // The profile holds only links that are not lost.
  [[nodiscard]] virtual RunStarts choose(const model::Profile& profile) const = 0;

 private:
  ProfileWatch watch_;
  std::optional<BucketFusion> fusion_;
};

}  // namespace deft::sched
