// MG-WFBP (Shi et al., INFOCOM 2019): neighbours in the order of production go as one launch if the start-up of the link
// that this saves is worth more than the wait for the last of them; otherwise fifo. It begins as fifo, merges
// once it has a profile, and merges anew when the profile has moved.
#include <optional>
#include <utility>

#include "core/model/fusion.h"
#include "core/sched/policies.h"
#include "core/sched/profile_watch.h"
#include "core/sched/run_scheduler.h"

namespace deft::sched {
namespace {

class MgWfbp final : public RunScheduler {
 public:
  explicit MgWfbp(const Setup& setup)
      : RunScheduler(setup, single_runs(setup.buckets.size())), watch_(setup.links.size(), true) {}

  void link_lost(model::LinkIndex link) override {
    RunScheduler::link_lost(link);
    watch_.link_lost(link);
  }

  [[nodiscard]] bool wants_profile(std::uint64_t step) const override { return watch_.is_due(step); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) override {
    auto reason = watch_.look(profile, step);
    if (!reason) return;
    watch_.decided(profile);
    auto fused = model::fused_starts(watch_.remaining(profile), apart());
    if (fused == starts()) return;
    fusion_ = BucketFusion{step, fused, std::move(reason->reason)};
    change_runs(std::move(fused));
  }

  std::optional<BucketFusion> take_fusion() override { return std::exchange(fusion_, std::nullopt); }

 private:
  ProfileWatch watch_;
  std::optional<BucketFusion> fusion_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup) { return std::make_unique<MgWfbp>(setup); }

}  // namespace deft::sched
