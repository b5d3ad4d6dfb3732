// MG-WFBP (Shi et al., INFOCOM 2019): neighbours in the order of production go as one launch if the start-up of the link
// that this saves is worth more than the wait for the last of them; otherwise fifo. It begins as fifo, merges
// once it has a profile, and merges anew when the profile has moved.
#include "core/model/fusion.h"
#include "core/sched/measured_runs.h"
#include "core/sched/policies.h"

namespace deft::sched {
namespace {

class MgWfbp final : public MeasuredRuns {
 public:
  explicit MgWfbp(const Setup& setup) : MeasuredRuns(setup, single_runs(setup.buckets.size())) {}

 private:
  [[nodiscard]] RunStarts choose(const model::Profile& profile) const override {
    return model::fused_starts(profile, apart());
  }
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_mgwfbp(const Setup& setup) { return std::make_unique<MgWfbp>(setup); }

}  // namespace deft::sched
