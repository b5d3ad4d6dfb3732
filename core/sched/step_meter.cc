#include "core/sched/step_meter.h"

#include <algorithm>

namespace deft::sched {

void StepMeter::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  const auto lasted = [&](TimeUs since_us) {
    return std::max(0.0, static_cast<double>(now_us - since_us - waited_us));
  };
  if (stage == Stage::kForward) {
    between_us_ = backward_ended_ && step == step_ + 1 ? lasted(*backward_ended_) : -1;
    step_ = step;
    forward_began_ = now_us;
    backward_began_.reset();
    backward_ended_.reset();
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
  Step seen{between_us_, forward_us_, {}};
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
  backward_ended_ = before;
}

// Of what is known of it; 0 where nothing is.
double StepMeter::median(double (*value)(const Step&, std::size_t), std::size_t index) const {
  std::vector<double> seen;
  for (const Step& step : steps_)
    if (const double us = value(step, index); us >= 0) seen.push_back(us);
  if (seen.empty()) return 0;
  const auto middle = seen.begin() + static_cast<std::ptrdiff_t>(seen.size() / 2);
  std::nth_element(seen.begin(), middle, seen.end());
  return *middle;
}

std::optional<model::Profile> StepMeter::profile(std::span<const model::LinkModel> links) const {
  if (steps_.size() < kSteps) return std::nullopt;
  std::vector<double> backward(buckets_.size());
  double backward_us = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    backward[b] = std::max(1.0, median([](const Step& step, std::size_t i) { return step.backward_us[i]; }, b));
    backward_us += backward[b];
  }
  const double forward_us = median([](const Step& step, std::size_t) { return step.forward_us; }, 0);
  const double between_us = median([](const Step& step, std::size_t) { return step.between_us; }, 0);
  model::Profile profile;
  for (std::size_t b = buckets_.size(); b-- > 0;)
    profile.buckets.push_back({"b" + std::to_string(b), buckets_[b].bytes, forward_us * backward[b] / backward_us,
                               backward[b], std::nullopt});
  profile.buckets.front().forward_us += between_us;
  for (std::size_t l = 0; l < links.size(); ++l)
    profile.links.push_back({"link" + std::to_string(l), links[l].latency_us, std::nullopt, links[l].bytes_per_us});
  if (!model::check_profile(profile)) return std::nullopt;
  return profile;
}

}  // namespace deft::sched
