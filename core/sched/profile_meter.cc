#include "core/sched/profile_meter.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/sched/link_board.h"

namespace deft::sched {
namespace {

// The codecs of a job with their newest times.
class NewestCodecs {
 public:
  explicit NewestCodecs(const Setup& setup) : list_(setup.codecs), fixed_(setup.codec), fixed_cost_(setup.codec_cost) {}

  void measured(std::span<const model::CodecCost> costs) {
    for (std::size_t codec = 1; codec < std::min(list_.size(), costs.size()); ++codec) list_[codec] = costs[codec];
    if (fixed_ != 0 && fixed_ < costs.size()) fixed_cost_ = costs[fixed_];
  }
  void put_into(model::Profile& profile) const {
    profile.codecs = list_;
    if (fixed_ == 0) return;
    profile.fixed_codec = fixed_cost_;
    profile.fixed_codec->wire_share = 1;
    profile.fixed_codec->link_shares.clear();
  }

 private:
  std::vector<model::CodecCost> list_;
  const model::CodecIndex fixed_;
  model::CodecCost fixed_cost_;
};

class ProfileMeter final : public Scheduler {
 public:
  ProfileMeter(std::unique_ptr<Scheduler> inner, const Setup& setup)
      : inner_(std::move(inner)), links_(setup.links), codecs_(setup), meter_(setup.buckets) {}

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
  void codecs_measured(std::span<const model::CodecCost> costs) override { codecs_.measured(costs); }
  void link_lost(model::LinkIndex link) override { inner_->link_lost(link); }
  std::vector<Launch> take_launches(TimeUs now_us) override { return inner_->take_launches(now_us); }
  std::vector<Update> take_updates() override { return inner_->take_updates(); }
  void flushed(std::uint64_t step, TimeUs now_us) override { inner_->flushed(step, now_us); }
  std::optional<PlanSwitch> take_switch() override { return inner_->take_switch(); }
  std::optional<BucketFusion> take_fusion() override { return inner_->take_fusion(); }
  Result<void> change_settings(const SettingsChange& change) override { return inner_->change_settings(change); }
  [[nodiscard]] Result<void> check_change(const SettingsChange& change) const override {
    return inner_->check_change(change);
  }
  std::optional<PolicyChange> take_policy_change() override { return inner_->take_policy_change(); }

 private:
  // Before anything of `step`.
  void reach(std::uint64_t step, TimeUs now_us) {
    if (reached_ > step) return;
    reached_ = step + 1;
    if (!inner_->wants_profile(step)) return;
    auto profile = meter_.profile(links_);
    if (!profile) return;
    codecs_.put_into(*profile);
    inner_->profile_measured(*profile, step, now_us);
  }

  std::unique_ptr<Scheduler> inner_;
  std::vector<model::LinkModel> links_;  // as they are measured
  NewestCodecs codecs_;
  StepMeter meter_;
  std::uint64_t reached_ = 0;  // one more than the newest step
};

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

void StepMeter::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  const auto lasted = [&](TimeUs since_us) {
    return std::max(0.0, static_cast<double>(now_us - since_us - waited_us));
  };
  const bool ended = whole_.stage_began(stage, step, now_us, waited_us);
  if (stage == Stage::kForward) {
    if (ended && !forward_began_) steps_.newest().whole_us = whole_.newest_us();  // it was closed
    step_ = step;
    forward_began_ = now_us;
    backward_began_.reset();
    return;
  }
  if (step != step_ || !forward_began_) return;
  forward_us_ = lasted(*forward_began_);
  backward_began_ = now_us;
  std::fill(newest_.begin(), newest_.end(), std::nullopt);
  missing_ = newest_.size();
}

void StepMeter::bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
  if (step != step_ || !backward_began_ || newest_[bucket]) return;
  newest_[bucket] = now_us;
  if (--missing_ == 0) close_step();
}

void StepMeter::close_step() {
  Step seen{forward_us_, {}, forward_us_};
  TimeUs before = *backward_began_;
  for (const auto& at : newest_) {  // buckets may be ready out of order; the later one then took no time of its own
    const TimeUs now = std::max(before, *at);
    seen.backward_us.push_back(static_cast<double>(now - before));
    before = now;
  }
  seen.whole_us += static_cast<double>(before - *backward_began_);
  steps_.add(std::move(seen));
  forward_began_.reset();
  backward_began_.reset();
}

std::optional<model::Profile> StepMeter::profile(std::span<const model::LinkModel> links) const {
  if (steps_.size() < kComplete) return std::nullopt;
  const auto usual = [&](const auto& value) {
    std::vector<double> seen;
    for (const Step& step : steps_) seen.push_back(value(step));
    return lower_third(std::move(seen));
  };
  std::vector<double> backward(buckets_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    backward[b] = std::max(1.0, usual([b](const Step& step) { return step.backward_us[b]; }));
  // The lower thirds of the buckets are less together than that of their sums, if their times vary independently.
  const double backward_us = std::max(1.0, usual([](const Step& step) { return sum_of(step.backward_us); }));
  const double stretch = backward_us / sum_of(backward);
  for (double& us : backward) us *= stretch;
  const double forward_us = usual([](const Step& step) { return step.forward_us; });
  const double stages_us = forward_us + backward_us;
  const double whole_us = usual([](const Step& step) { return step.whole_us; });
  // A disturbance may have lengthened complete steps. So only the shares of their parts count, of the usual time of a whole step.
  double scale = whole_.ended() == 0 ? 1 : std::min(1.0, whole_.usual_us() / std::max(1.0, whole_us));
  scale = std::max(scale, slowest_us_ / std::max(1.0, whole_us));
  model::Profile profile;
  for (std::size_t b = buckets_.size(); b-- > 0;)
    profile.buckets.push_back({"b" + std::to_string(b), buckets_[b].bytes,
                               scale * forward_us * backward[b] / backward_us, scale * backward[b], std::nullopt,
                               buckets_[b].coded_bytes, model::is_half(buckets_[b].dtype) ? 2U : 4U});
  profile.buckets.front().forward_us += scale * std::max(0.0, whole_us - stages_us);
  for (std::size_t l = 0; l < links.size(); ++l)
    profile.links.push_back({"link" + std::to_string(l), links[l].latency_us, std::nullopt, links[l].bytes_per_us});
  if (!model::check_profile(profile)) return std::nullopt;
  return profile;
}

std::unique_ptr<Scheduler> measured(std::unique_ptr<Scheduler> scheduler, const Setup& setup) {
  return std::make_unique<ProfileMeter>(std::move(scheduler), setup);
}

}  // namespace deft::sched
