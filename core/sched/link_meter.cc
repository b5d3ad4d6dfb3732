#include "core/sched/link_meter.h"

#include <algorithm>
#include <vector>

namespace deft::sched {
namespace {

constexpr double kLargeBytes = 256 << 10;
constexpr std::uint64_t kSmallBytes = 32 << 10;
constexpr double kRunKept = 0.9;     // what counts of the parts before one that overlaps them
constexpr double kQuickShare = 0.7;  // the throughput that this share of the parts does not reach

}  // namespace

void LinkMeter::add(std::uint64_t bytes, double us, bool overlapped) {
  if (us < 0) return;
  const bool small = bytes <= kSmallBytes;
  const double kept = !overlapped ? 0 : small ? 1 : kRunKept;
  run_ = {run_.bytes * kept + static_cast<double>(bytes), run_.us * kept + us, overlapped};
  const Sample sample = run_;
  if (sample.us <= 0 || (small && overlapped)) return;
  if (small) {
    small_.add(sample);
    double least = us;
    for (const auto& seen : small_) least = std::min(least, seen.us);
    if (small_.size() >= kLeast) model_.latency_us = least;
    return;
  }
  if (sample.bytes < kLargeBytes) return;
  large_.add(sample);
  if (large_.size() < kLeast) return;
  std::vector<double> speeds;
  for (const auto& seen : large_) {
    const double net_us = seen.overlapped ? seen.us : std::max(seen.us - model_.latency_us, seen.us / 2);
    speeds.push_back(seen.bytes / net_us);
  }
  const auto quick = speeds.begin() + static_cast<std::ptrdiff_t>(kQuickShare * static_cast<double>(speeds.size() - 1));
  std::nth_element(speeds.begin(), quick, speeds.end());
  model_.bytes_per_us = *quick;
}

}  // namespace deft::sched
