#include "core/sched/profile_meter.h"

#include <utility>
#include <vector>

#include "core/sched/link_board.h"
#include "core/sched/step_meter.h"

namespace deft::sched {
namespace {

class ProfileMeter final : public Scheduler {
 public:
  ProfileMeter(std::unique_ptr<Scheduler> inner, const Setup& setup)
      : inner_(std::move(inner)), links_(setup.links), meter_(setup.buckets) {}

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) override {
    meter_.stage_began(stage, step, now_us, waited_us);
    reach(step, now_us);
    inner_->stage_began(stage, step, now_us, waited_us);
  }
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override {
    meter_.bucket_ready(bucket, step, now_us);
    reach(step, now_us);
    inner_->bucket_ready(bucket, step, now_us);
  }
  void part_finished(const Launch& launch, TimeUs now_us) override { inner_->part_finished(launch, now_us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& model) override {
    if (is_sane(model)) links_[link] = model;
    inner_->link_measured(link, model);
  }
  void slowest_step_measured(double us) override {
    meter_.slowest_step_measured(us);
    inner_->slowest_step_measured(us);
  }
  void link_lost(model::LinkIndex link) override { inner_->link_lost(link); }
  std::vector<Launch> take_launches(TimeUs now_us) override { return inner_->take_launches(now_us); }
  std::vector<Update> take_updates() override { return inner_->take_updates(); }
  void flushed(std::uint64_t step, TimeUs now_us) override { inner_->flushed(step, now_us); }
  std::optional<PlanSwitch> take_switch() override { return inner_->take_switch(); }
  std::optional<BucketFusion> take_fusion() override { return inner_->take_fusion(); }

 private:
  // Before anything of `step`.
  void reach(std::uint64_t step, TimeUs now_us) {
    if (reached_ > step) return;
    reached_ = step + 1;
    if (!inner_->wants_profile(step)) return;
    if (const auto profile = meter_.profile(links_)) inner_->profile_measured(*profile, step, now_us);
  }

  std::unique_ptr<Scheduler> inner_;
  std::vector<model::LinkModel> links_;  // as they are measured
  StepMeter meter_;
  std::uint64_t reached_ = 0;  // one more than the newest step
};

}  // namespace

std::unique_ptr<Scheduler> measured(std::unique_ptr<Scheduler> scheduler, const Setup& setup) {
  return std::make_unique<ProfileMeter>(std::move(scheduler), setup);
}

}  // namespace deft::sched
