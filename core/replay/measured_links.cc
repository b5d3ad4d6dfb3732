#include "core/replay/measured_links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/replay/launches.h"
#include "core/replay/link_burst.h"
#include "core/replay/links_traffic.h"
#include "core/replay/quantiles.h"

namespace deft::replay {
namespace {

constexpr double kLeastNetwork = 0.1;    // of the time in which a connection was busy
constexpr double kMostRoundTrips = 2;    // that a part waits for at each hop of a ring ...
constexpr double kMostHandlingUs = 250;  // ... and what its ends take to handle it
constexpr double kAlike = 0.01;          // of the determinant: below it a fit of two numbers is one of noise
constexpr int kRounds = 30;              // after which a fit changes no more
constexpr double kExact = 1e-3;          // of a period: it may be off by less

// When the transfer of each of the leader's launches could begin: when the last node had brought its gradients. No node has a sum
// before that, so a begin behind the leader's end is an error of the clocks. On a busy machine they may be off by more than a transfer.
// `of_leader`: the leader's launches.
std::map<std::uint64_t, TimeUs> joint_begins(const JobTrace& job, const std::vector<NodeLaunch>& of_leader) {
  std::map<std::uint64_t, TimeUs> begins, ends;
  for (const NodeLaunch& launch : of_leader)
    if (!launch.spans.empty()) begins[launch.number] = launch.begin_us(), ends[launch.number] = launch.end_us();
  for (const auto& node : std::span(job.nodes).subspan(1))  // the leader is the first
    for (const NodeLaunch& launch : launches_of(node.trace)) {
      const auto end = ends.find(launch.number);
      if (launch.spans.empty() || end == ends.end() || launch.begin_us() >= end->second) continue;
      begins[launch.number] = std::max(begins[launch.number], launch.begin_us());
    }
  return begins;
}

// On the leader, from when it could begin.
struct Transfer {
  TimeUs begin_us = 0, end_us = 0;
  std::uint64_t wire_bytes = 0;
};

// Transfers of a link overlap, and end in bursts. So a single one tells little, and a whole period tells all.
std::vector<BusyPeriod> busy_periods(std::vector<Transfer> transfers) {
  std::ranges::sort(transfers, {}, &Transfer::begin_us);
  std::vector<BusyPeriod> periods;
  TimeUs began_us = 0, end_us = -1;
  for (const Transfer& transfer : transfers) {
    if (transfer.begin_us > end_us) {
      periods.push_back({.begin_us = transfer.begin_us});
      began_us = transfer.begin_us;
    }
    end_us = std::max(end_us, transfer.end_us);
    periods.back().us = static_cast<double>(end_us - began_us);
    periods.back().bytes += static_cast<double>(transfer.wire_bytes);
    periods.back().parts += 1;
  }
  std::erase_if(periods, [](const BusyPeriod& period) { return period.us <= 0 || period.bytes <= 0; });
  return periods;
}

// What the kernel's counters tell of an all-reduce.
struct Network {
  double us_per_byte = 0;      // in which the slowest node's network carried data; 0: not known
  double most_latency_us = 0;  // that a part can cost beside its bytes
};

// `part_bytes`: the mean of a transfer's. A connection is busy until the last acknowledgement. So each message costs a round trip that is
// latency and no throughput, which counts if messages are small.
Network network_of(const JobTrace& job, std::uint16_t link, double part_bytes) {
  const auto nodes = static_cast<double>(job.node_count());
  double slowest = 0, rtt_us = 0;
  for (const auto& node : job.nodes) {
    const LinkTraffic traffic = traffic_of(node.trace, link);
    if (traffic.bytes <= 0) continue;
    const double us = traffic.busy_us / traffic.bytes;
    const double round_trip_us = traffic.rtt_us / std::max(1.0, part_bytes / nodes);  // a byte
    slowest = std::max(slowest, std::max(us - round_trip_us, kLeastNetwork * us));
    rtt_us = std::max(rtt_us, traffic.rtt_us);
  }
  const double hops = 2 * (nodes - 1);
  return {slowest * hops / nodes, hops * (kMostRoundTrips * rtt_us + kMostHandlingUs)};
}

double mean_part_bytes(const std::vector<BusyPeriod>& periods) {
  BusyPeriod sum;
  for (const BusyPeriod& period : periods) sum.bytes += period.bytes, sum.parts += period.parts;
  return sum.parts > 0 ? sum.bytes / sum.parts : 0;
}

// The median over bytes and not over periods, because most bytes may travel in few long periods.
double median_us_per_byte(const std::vector<BusyPeriod>& periods) {
  std::vector<std::pair<double, double>> rates;
  for (const BusyPeriod& period : periods)
    if (period.bytes > 0) rates.emplace_back(period.us / period.bytes, period.bytes);
  return weighted_median(std::move(rates));
}

// If periods are too much alike to tell latency and throughput apart: the network's own time is the bytes', and the rest is
// latency. But a ring waits for its slowest member as long as that has bytes, so what no latency can be is the bytes', too. Without
// counters all of the time is. `us_per_byte`: of the usual byte.
model::ProfileLink link_of_equal_parts(const std::string& name, double us_per_byte, double part_bytes,
                                       const Network& network) {
  model::ProfileLink link{.name = name, .relative_time = std::nullopt, .bytes_per_us = 1 / us_per_byte};
  const double latency_us = std::min((us_per_byte - network.us_per_byte) * part_bytes, network.most_latency_us);
  if (network.us_per_byte > 0 && latency_us > 0)
    link.latency_us = latency_us, link.bytes_per_us = 1 / (us_per_byte - latency_us / part_bytes);
  return link;
}

// us = parts * part_us + bytes * byte_us
struct Costs {
  double part_us = 0, byte_us = 0;
  [[nodiscard]] double off_us(const BusyPeriod& period) const {
    return std::abs(period.us - period.parts * part_us - period.bytes * byte_us);
  }
};

// The solution of least squares in which period i counts weight(i). Empty if the periods are too much alike.
template <typename Weight>
std::optional<Costs> least_squares(const std::vector<BusyPeriod>& periods, const Weight& weight) {
  double pp = 0, pb = 0, bb = 0, pu = 0, bu = 0;
  for (const BusyPeriod& period : periods) {
    const double w = weight(period);
    pp += w * period.parts * period.parts, pb += w * period.parts * period.bytes, bb += w * period.bytes * period.bytes;
    pu += w * period.parts * period.us, bu += w * period.bytes * period.us;
  }
  const double determinant = pp * bb - pb * pb;
  if (determinant <= kAlike * pp * bb) return std::nullopt;
  return Costs{(pu * bb - bu * pb) / determinant, (bu * pp - pu * pb) / determinant};
}

// Makes the sum of the absolute deviations least, so that a few periods that something disturbed do not count. Empty if the periods are
// too much alike.
std::optional<Costs> costs_of(const std::vector<BusyPeriod>& periods) {
  auto costs = least_squares(periods, [](const BusyPeriod& period) { return 1 / (period.us * period.us); });
  for (int round = 0; costs && round < kRounds; ++round) {
    const auto next = least_squares(
        periods, [&](const BusyPeriod& period) { return 1 / std::max(costs->off_us(period), kExact * period.us); });
    if (!next) break;
    costs = next;
  }
  return costs;
}

model::ProfileLink link_of(const std::string& name, const std::vector<BusyPeriod>& periods, const Network& network,
                           double burst_bytes) {
  const double us_per_byte = median_us_per_byte(periods);
  model::ProfileLink link = link_of_equal_parts(name, us_per_byte, mean_part_bytes(periods), network);
  const auto slow = without_burst(periods, burst_bytes);
  if (const double slow_us = median_us_per_byte(slow); burst_bytes > 0 && slow_us > 0)
    link.burst_bytes = burst_bytes, link.bytes_per_us = *link.bytes_per_us * us_per_byte / slow_us;
  const auto costs = costs_of(slow);
  if (costs && costs->part_us > 0 && costs->byte_us > 0)
    link.latency_us = costs->part_us, link.bytes_per_us = 1 / costs->byte_us;
  return link;
}

}  // namespace

std::vector<model::ProfileLink> measured_links(const JobTrace& job, std::vector<std::string>& problems) {
  const trace::NodeTrace& leader = job.leader()->trace;
  const auto launches = launches_of(leader);
  const auto begins = joint_begins(job, launches);
  std::map<std::uint16_t, std::vector<Transfer>> by_link;
  for (const NodeLaunch& launch : launches)
    if (!launch.spans.empty() && launch.order)
      by_link[launch.link].push_back({begins.at(launch.number), launch.end_us(), launch.wire_bytes});
  std::vector<model::ProfileLink> links;
  for (std::size_t link = 0; link < leader.header.links.size(); ++link) {
    const auto periods = busy_periods(by_link[static_cast<std::uint16_t>(link)]);
    if (periods.empty())
      problems.push_back("link " + leader.header.links[link] + " carried nothing, and is left out");
    else
      links.push_back(link_of(leader.header.links[link], periods,
                              network_of(job, static_cast<std::uint16_t>(link), mean_part_bytes(periods)),
                              burst_of(periods, arrivals_of(job, static_cast<std::uint16_t>(link), periods))));
  }
  return links;
}

}  // namespace deft::replay
