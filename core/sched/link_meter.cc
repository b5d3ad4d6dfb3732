#include "core/sched/link_meter.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace deft::sched {
namespace {

constexpr double kLargeBytes = 256 << 10;
constexpr std::uint64_t kShortBytes = 32 << 10;
constexpr double kRunKept = 0.9;     // what counts of the parts before one that overlaps them
constexpr double kQuickShare = 0.7;  // the throughput that this share of the parts does not reach

// A part's time without `other_us`, its latency or its time on the wire: an estimate, so at least half of the time is left.
double net_us(double us, double other_us) { return std::max(us - other_us, us / 2); }

}  // namespace

void LinkMeter::add(std::uint64_t bytes, double us, bool overlapped) {
  if (us < 0) return;
  const bool small = bytes <= kShortBytes;
  const double kept = !overlapped ? 0 : small ? 1 : kRunKept;
  run_ = {run_.bytes * kept + static_cast<double>(bytes), run_.us * kept + us, overlapped};
  const Sample sample = run_;
  if (sample.us <= 0 || (small && overlapped)) return;
  if (small)
    small_.add(sample);
  else if (sample.bytes >= kLargeBytes)
    large_.add(sample);
  if (small_.size() >= kLeast) model_.latency_us = latency_us();
  if (large_.size() >= kLeast) model_.bytes_per_us = bytes_per_us();
}

double LinkMeter::latency_us() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Sample& seen : small_) least = std::min(least, net_us(seen.us, seen.bytes / model_.bytes_per_us));
  return least;
}

double LinkMeter::bytes_per_us() const {
  std::vector<double> speeds;
  for (const Sample& seen : large_)
    speeds.push_back(seen.bytes / (seen.overlapped ? seen.us : net_us(seen.us, model_.latency_us)));
  const auto quick = speeds.begin() + static_cast<std::ptrdiff_t>(kQuickShare * static_cast<double>(speeds.size() - 1));
  std::nth_element(speeds.begin(), quick, speeds.end());
  return *quick;
}

}  // namespace deft::sched
