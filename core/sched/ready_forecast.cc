#include "core/sched/ready_forecast.h"

#include <algorithm>
#include <numeric>

namespace deft::sched {

ReadyForecast::ReadyForecast(std::size_t buckets)
    : offset_us_(buckets, -1), by_offset_(buckets), is_ready_(buckets), missing_(buckets) {
  std::iota(by_offset_.begin(), by_offset_.end(), 0);
}

void ReadyForecast::learn(const model::Profile& profile) {
  const auto ready_us = model::ready_times(profile);
  for (std::size_t bucket = 0; bucket < offset_us_.size(); ++bucket)
    if (offset_us_[bucket] < 0) offset_us_[bucket] = ready_us[bucket];
}

bool ReadyForecast::is_incomplete() const {
  return std::ranges::any_of(offset_us_, [](double us) { return us < 0; });
}

void ReadyForecast::begin(std::uint64_t step, TimeUs now_us) {
  if (running_ && step <= step_) return;
  running_ = true;
  step_ = step;
  began_us_ = now_us;
  is_ready_.assign(is_ready_.size(), false);
  missing_ = is_ready_.size();
  passed_ = 0;
  std::stable_sort(by_offset_.begin(), by_offset_.end(), [&](auto a, auto b) { return offset_us_[a] < offset_us_[b]; });
}

void ReadyForecast::backward_began(std::uint64_t step, TimeUs now_us) { begin(step, now_us); }

void ReadyForecast::ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
  begin(step, now_us);  // where stages are not reported, the first bucket begins the count
  const auto measured = static_cast<double>(now_us - began_us_);
  double& offset = offset_us_.at(bucket);
  offset = offset < 0 ? measured : (offset + measured) / 2;
  if (!is_ready_[bucket]) is_ready_[bucket] = true, --missing_;
}

std::optional<double> ReadyForecast::next_us(std::span<const std::uint32_t> ranks, std::uint64_t rank) const {
  if (!running_ || missing_ == 0) return std::nullopt;
  while (passed_ < by_offset_.size() && is_ready_[by_offset_[passed_]]) ++passed_;
  for (std::size_t i = passed_; i < by_offset_.size(); ++i) {
    const auto bucket = by_offset_[i];
    if (is_ready_[bucket] || ranks[bucket] >= rank) continue;
    return offset_us_[bucket] < 0 ? 0 : static_cast<double>(began_us_) + offset_us_[bucket];
  }
  return std::nullopt;
}

std::optional<double> ReadyForecast::ready_us(model::BucketIndex bucket) const {
  if (!running_ || is_ready_[bucket] || offset_us_[bucket] < 0) return std::nullopt;
  return static_cast<double>(began_us_) + offset_us_[bucket];
}

}  // namespace deft::sched
