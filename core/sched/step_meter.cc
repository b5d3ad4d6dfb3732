#include "core/sched/step_meter.h"

#include <algorithm>

namespace deft::sched {

void StepMeter::stage_began(Stage stage, std::uint64_t step, TimeUs now_us) {
  if (stage == Stage::kForward) {
    step_ = step;
    forward_began_ = now_us;
    backward_began_.reset();
    return;
  }
  if (step != step_ || !forward_began_) return;
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
  Step seen{static_cast<double>(*backward_began_ - *forward_began_), {}};
  TimeUs before = *backward_began_;
  for (const auto& at : newest_) {  // buckets may be ready out of order; the later one then took no time of its own
    const TimeUs now = std::max(before, *at);
    seen.backward_us.push_back(static_cast<double>(now - before));
    before = now;
  }
  if (steps_.size() < kSteps)
    steps_.push_back(std::move(seen));
  else
    steps_[closed_ % kSteps] = std::move(seen);
  ++closed_;
  forward_began_.reset();
  backward_began_.reset();
}

std::optional<model::Profile> StepMeter::profile(std::span<const model::LinkModel> links) const {
  if (steps_.size() < kSteps) return std::nullopt;
  std::vector<double> backward(buckets_.size());
  double backward_us = 0;
  std::vector<double> seen(kSteps);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t s = 0; s < kSteps; ++s) seen[s] = steps_[s].backward_us[b];
    std::nth_element(seen.begin(), seen.begin() + kSteps / 2, seen.end());
    backward[b] = std::max(1.0, seen[kSteps / 2]);
    backward_us += backward[b];
  }
  double forward_us = backward_us;  // forward takes no longer than backward; what is above that is waiting
  for (const auto& step : steps_) forward_us = std::min(forward_us, step.forward_us);
  model::Profile profile;
  for (std::size_t b = buckets_.size(); b-- > 0;)
    profile.buckets.push_back({"b" + std::to_string(b), buckets_[b].bytes, forward_us * backward[b] / backward_us,
                               backward[b], std::nullopt});
  for (std::size_t l = 0; l < links.size(); ++l)
    profile.links.push_back({"link" + std::to_string(l), links[l].latency_us, std::nullopt, links[l].bytes_per_us});
  if (!model::check_profile(profile)) return std::nullopt;
  return profile;
}

}  // namespace deft::sched
