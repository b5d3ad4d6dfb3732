#include "core/replay/link_burst.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/replay/quantiles.h"
#include "core/trace/segment_trace.h"

namespace deft::replay {
namespace {

constexpr double kLeastBurst = 8 << 10;  // bytes
constexpr int kBursts = 29;              // that are tried, up to 1 MB: a NIC with a larger one is hardly shaped
constexpr int kBurstsADouble = 4;
constexpr double kLeastBetter = 0.04;        // what a burst explains of the deviations without it, at least
constexpr std::size_t kMostArrivals = 4000;  // that are looked at
constexpr int kRounds = 4;                   // in which the rate, which pauses earn by, is found
constexpr std::size_t kLeastPeriods = 4;

// The bytes that need no time, by period: what pauses have earned, and no more than the period has.
std::vector<double> free_bytes(const std::vector<BusyPeriod>& periods, double burst_bytes, double us_per_byte) {
  std::vector<double> free;
  double earned = burst_bytes, ended_us = 0;
  for (const BusyPeriod& period : periods) {
    const auto begin_us = static_cast<double>(period.begin_us);
    if (!free.empty()) earned = std::min(burst_bytes, earned + std::max(0.0, begin_us - ended_us) / us_per_byte);
    free.push_back(std::min(earned, period.bytes));
    earned -= free.back();
    ended_us = begin_us + period.us;
  }
  return free;
}

// `free`: bytes that do not count, by period; empty: all count. 0 if no byte counts.
double mean_us_per_byte(const std::vector<BusyPeriod>& periods, const std::vector<double>& free = {}) {
  double us = 0, bytes = 0;
  for (std::size_t i = 0; i < periods.size(); ++i)
    us += periods[i].us, bytes += periods[i].bytes - (free.empty() ? 0 : free[i]);
  return bytes > 0 ? us / bytes : 0;
}

// The microseconds a byte with which the sum of the absolute deviations is least: the median over the bytes. 0 if no byte took time.
double us_per_byte_of(const std::vector<Arrival>& arrivals, const std::vector<double>& free) {
  std::vector<std::pair<double, double>> rates;
  for (const Arrival& arrival : arrivals)
    if (const double bytes = arrival.bytes - free[arrival.period]; bytes > 0)
      rates.emplace_back(arrival.us / bytes, bytes);
  return weighted_median(std::move(rates));
}

struct Earned {
  double us_per_byte = 0;    // 0: no byte took time
  std::vector<double> free;  // bytes by period, found with the rate of the round before
};

// The rate tells what pauses earn, and that tells which bytes took time, and so the rate. So each is found from the other, in turns.
// `rate_of(free)`: microseconds a byte, of the bytes that are not free; 0 if there are none.
template <typename RateOf>
Earned earned_in(const std::vector<BusyPeriod>& periods, double burst_bytes, const RateOf& rate_of) {
  Earned earned{.us_per_byte = mean_us_per_byte(periods), .free = {}};
  for (int round = 0; round < kRounds; ++round) {
    earned.free = free_bytes(periods, burst_bytes, earned.us_per_byte);
    earned.us_per_byte = rate_of(earned.free);
    if (earned.us_per_byte <= 0) break;
  }
  return earned;
}

// What such a burst leaves unexplained of all arrivals together.
double deviation_us_with(double burst_bytes, const std::vector<BusyPeriod>& periods,
                         const std::vector<Arrival>& arrivals) {
  const Earned earned =
      earned_in(periods, burst_bytes, [&](const auto& free) { return us_per_byte_of(arrivals, free); });
  if (earned.us_per_byte <= 0) return std::numeric_limits<double>::infinity();
  double us = 0;
  for (const Arrival& arrival : arrivals)
    us += std::abs(arrival.us - earned.us_per_byte * std::max(0.0, arrival.bytes - earned.free[arrival.period]));
  return us;
}

// The end of each period is an arrival, too.
std::vector<Arrival> with_ends(std::vector<Arrival> arrivals, const std::vector<BusyPeriod>& periods) {
  const std::size_t every = arrivals.size() / kMostArrivals + 1;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < arrivals.size(); i += every) arrivals[kept++] = arrivals[i];
  arrivals.resize(kept);
  for (std::size_t i = 0; i < periods.size(); ++i) arrivals.push_back({i, periods[i].us, periods[i].bytes});
  return arrivals;
}

}  // namespace

std::vector<Arrival> arrivals_of(const JobTrace& job, std::uint16_t link, const std::vector<BusyPeriod>& periods) {
  std::vector<Arrival> all;
  for (const auto& node : job.nodes) {
    std::vector<std::pair<TimeUs, double>> received;
    for (const auto& record : node.trace.records) {
      if (record.kind() != trace::TraceKind::kSegment) continue;
      const auto segment = record.as<trace::SegmentTrace>();
      if (segment.link == link && segment.is_sent == 0)
        received.emplace_back(record.end_us(), static_cast<double>(segment.bytes));
    }
    std::ranges::sort(received);
    auto next = received.begin();
    for (std::size_t i = 0; i < periods.size(); ++i) {
      const BusyPeriod& period = periods[i];
      const TimeUs end_us = period.begin_us + static_cast<TimeUs>(period.us);
      while (next != received.end() && next->first < period.begin_us) ++next;
      const std::size_t first = all.size();
      double bytes = 0;
      for (; next != received.end() && next->first <= end_us; ++next)
        all.push_back({i, static_cast<double>(next->first - period.begin_us), bytes += next->second});
      // A node receives its share of what the period carries.
      if (bytes <= 0) all.resize(first);
      for (std::size_t arrival = first; arrival < all.size(); ++arrival) all[arrival].bytes *= period.bytes / bytes;
    }
  }
  return all;
}

double burst_of(const std::vector<BusyPeriod>& periods, const std::vector<Arrival>& arrivals) {
  if (periods.size() < kLeastPeriods) return 0;
  const auto all = with_ends(arrivals, periods);
  double least_us = deviation_us_with(0, periods, all) * (1 - kLeastBetter), best = 0;
  for (int i = 0; i < kBursts; ++i) {
    const double burst = kLeastBurst * std::exp2(static_cast<double>(i) / kBurstsADouble);
    const double us = deviation_us_with(burst, periods, all);
    if (us < least_us) least_us = us, best = burst;
  }
  return best;
}

std::vector<BusyPeriod> without_burst(std::vector<BusyPeriod> periods, double burst_bytes) {
  if (periods.empty() || burst_bytes <= 0) return periods;
  const Earned earned =
      earned_in(periods, burst_bytes, [&](const auto& free) { return mean_us_per_byte(periods, free); });
  const auto free = earned.us_per_byte > 0 ? free_bytes(periods, burst_bytes, earned.us_per_byte) : earned.free;
  for (std::size_t i = 0; i < periods.size(); ++i) periods[i].bytes -= free[i];
  return periods;
}

}  // namespace deft::replay
