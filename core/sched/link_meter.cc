#include "core/sched/link_meter.h"

#include <algorithm>

namespace deft::sched {
namespace {

constexpr std::uint64_t kLargeBytes = 256 << 10;
constexpr std::uint64_t kSmallBytes = 32 << 10;
constexpr double kQuickShare = 0.7;  // the throughput that this share of the parts does not reach

}  // namespace

void LinkMeter::add_to(std::vector<Sample>& samples, std::size_t& count, Sample sample) const {
  if (samples.size() < kSamples)
    samples.push_back(sample);
  else
    samples[count % kSamples] = sample;
  ++count;
}

void LinkMeter::add(std::uint64_t bytes, double us) {
  if (us <= 0) return;
  if (bytes <= kSmallBytes) {
    add_to(small_, small_count_, {bytes, us});
    double least = us;
    for (const auto& sample : small_) least = std::min(least, sample.us);
    if (small_.size() >= kLeast) model_.latency_us = least;
    return;
  }
  if (bytes < kLargeBytes) return;
  add_to(large_, large_count_, {bytes, us});
  if (large_.size() < kLeast) return;
  std::vector<double> speeds;
  for (const auto& sample : large_)
    speeds.push_back(static_cast<double>(sample.bytes) / std::max(sample.us - model_.latency_us, sample.us / 2));
  const auto quick = speeds.begin() + static_cast<std::ptrdiff_t>(kQuickShare * static_cast<double>(speeds.size() - 1));
  std::nth_element(speeds.begin(), quick, speeds.end());
  model_.bytes_per_us = *quick;
}

}  // namespace deft::sched
