#include "core/replay/links_traffic.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/model/link_names.h"
#include "core/replay/launches.h"
#include "core/replay/quantiles.h"

namespace deft::replay {
namespace {

constexpr double kSlow = 0.75;  // of the others' rate: a NIC with a higher rate may be slow by chance
constexpr double kLeastShare = 0.001;
constexpr double kLeastBytes = 1U << 18;  // that tell a rate ...
constexpr double kSameMachine = 3;        // times the others' rate: this node runs the server itself
constexpr double kLeastMessage = 16e3;    // ... if they travel in messages of so many: smaller ones tell the latency

// take(traffic) for what `node` recorded of the link's connections: to servers, or to other nodes.
template <typename Take>
void for_each_traffic(const trace::NodeTrace& node, std::uint16_t link, bool of_servers, const Take& take) {
  for (const auto& record : node.records) {
    if (record.kind() != trace::TraceKind::kTraffic) continue;
    const auto traffic = record.as<trace::TrafficTrace>();
    if (traffic.link == link && (traffic.is_server != 0) == of_servers) take(traffic);
  }
}

using Pair = std::pair<std::uint32_t, std::uint32_t>;  // sender, receiver

// Of the pairs that have sent enough, in bytes a microsecond.
std::map<Pair, double> rates_of(const std::map<Pair, LinkTraffic>& sums) {
  std::map<Pair, double> rates;
  for (const auto& [pair, sum] : sums)
    if (sum.bytes >= kLeastBytes && sum.busy_us > 0) rates[pair] = sum.bytes / sum.busy_us;
  return rates;
}

// Bytes a microsecond in which data was on its way.
std::map<Pair, double> rates_of(const JobTrace& job, std::uint16_t link) {
  std::map<Pair, LinkTraffic> sums;
  for (const auto& node : job.nodes)
    for_each_traffic(node.trace, link, false, [&](const trace::TrafficTrace& traffic) {
      LinkTraffic& sum = sums[{node.trace.header.node, traffic.peer}];
      sum.bytes += static_cast<double>(traffic.sent_bytes);
      sum.busy_us += static_cast<double>(traffic.busy_us);
    });
  return rates_of(sums);
}

// The mean of what one node sends to another in a transfer, by link.
std::map<std::uint16_t, double> message_bytes(const JobTrace& job) {
  std::map<std::uint16_t, std::pair<double, double>> sums;
  for (const auto& launch : launches_of(job.nodes.front().trace)) {
    if (launch.spans.empty()) continue;
    auto& [bytes, transfers] = sums[launch.link];
    bytes += static_cast<double>(launch.wire_bytes), transfers += 1;
  }
  std::map<std::uint16_t, double> means;
  for (const auto& [link, sum] : sums) means[link] = sum.first / sum.second / static_cast<double>(job.node_count());
  return means;
}

// The best rate to any peer: a NIC that sends slowly sends slowly to all of them.
std::map<std::uint32_t, double> best(const std::map<Pair, double>& rates, bool sending) {
  std::map<std::uint32_t, double> found;
  for (const auto& [pair, rate] : rates) {
    double& most = found[sending ? pair.first : pair.second];
    most = std::max(most, rate);
  }
  return found;
}

// What the connections of a node carry together. Those to the peers are busy at the same time, and a peer with a slow NIC leaves the
// others more of this node's NIC. So only the sum tells what the NIC can carry.
std::map<std::uint32_t, double> together(const std::map<Pair, double>& rates, bool sending) {
  std::map<std::uint32_t, double> sums;
  for (const auto& [pair, rate] : rates) sums[sending ? pair.first : pair.second] += rate;
  return sums;
}

// The node's rate as a share of the others' median; 1 if it is not known.
double share_of(const std::map<std::uint32_t, double>& rates, std::uint32_t node) {
  std::vector<double> others;
  for (const auto& [other, rate] : rates)
    if (other != node) others.push_back(rate);
  const auto own = rates.find(node);
  return own == rates.end() || others.empty() ? 1 : std::min(1.0, own->second / median(others));
}

std::optional<SlowNic> slower_direction(const std::map<Pair, double>& rates, std::uint16_t link) {
  const bool both = rates.size() == 2 && rates.contains({0, 1}) && rates.contains({1, 0});
  if (!both) return std::nullopt;
  const auto slow = std::ranges::min_element(rates, {}, [](const auto& entry) { return entry.second; });
  const auto fast = std::ranges::max_element(rates, {}, [](const auto& entry) { return entry.second; });
  return SlowNic{
      .link = link, .node = slow->first.first, .sends = true, .certain = false, .share = slow->second / fast->second};
}

// How long the servers of a link owed `node` the results of a byte, by server.
std::map<std::uint32_t, double> owed_us_per_byte(const trace::NodeTrace& node, std::uint16_t link) {
  std::map<std::uint32_t, LinkTraffic> sums;
  for_each_traffic(node, link, true, [&](const trace::TrafficTrace& traffic) {
    LinkTraffic& sum = sums[traffic.peer];
    sum.bytes += static_cast<double>(traffic.sent_bytes);
    sum.busy_us += static_cast<double>(traffic.busy_us);
  });
  std::map<std::uint32_t, double> owed;
  for (const auto& [server, sum] : sums)
    if (sum.bytes >= kLeastBytes && sum.busy_us > 0) owed[server] = sum.busy_us / sum.bytes;
  return owed;
}

// `nodes` has what owed_us_per_byte() says of each node. A server's time holds waits for slow workers, as long for one server as for
// another. So what it takes longer than the others is its own, of the time at the node that waits least.
double server_share(const std::vector<std::map<std::uint32_t, double>>& nodes, std::uint32_t server) {
  std::vector<double> longer;
  double own_us = std::numeric_limits<double>::infinity();
  for (const auto& owed : nodes) {
    std::vector<double> others;
    for (const auto& [other, us] : owed)
      if (other != server) others.push_back(us);
    const auto own = owed.find(server);
    if (own == owed.end() || others.empty()) continue;
    longer.push_back(own->second - median(others));
    own_us = std::min(own_us, own->second);
  }
  return longer.empty() ? 1 : std::clamp(1 - median(longer) / own_us, kLeastShare, 1.0);
}

// Bytes a microsecond at which nodes push to the servers of a link, by the kernel: by node and server.
std::map<Pair, double> push_rates_of(const JobTrace& job, std::uint16_t link) {
  std::map<Pair, LinkTraffic> sums;
  for (const auto& node : job.nodes)
    for_each_traffic(node.trace, link, true, [&](const trace::TrafficTrace& traffic) {
      LinkTraffic& sum = sums[{node.trace.header.node, traffic.peer}];
      sum.bytes += 1024.0 * traffic.pushed_kb;
      sum.busy_us += traffic.pushing_us;
    });
  return rates_of(sums);
}

// A node's rate as a share of that of the slowest other node, at the server where this share is largest. If a node is slow at one server
// alone, its NIC is not the reason. Of two other nodes at most one runs the server, so the slowest tells what a NIC carries. 1: unknown.
double push_share(const std::map<Pair, double>& rates, std::uint32_t node) {
  std::map<std::uint32_t, std::vector<double>> others;  // by server
  for (const auto& [pair, rate] : rates)
    if (pair.first != node) others[pair.second].push_back(rate);
  double best_share = 0;
  for (const auto& [server, of_others] : others) {
    const auto own = rates.find({node, server});
    if (own == rates.end() || of_others.size() < 2) continue;
    const double share = own->second / std::ranges::min(of_others);
    if (share < kSameMachine) best_share = std::max(best_share, share);
  }
  return best_share > 0 ? std::min(1.0, best_share) : 1;
}

}  // namespace

bool knows_pushes(const JobTrace& job, std::uint16_t link) {
  return job.nodes.size() > 2 && !push_rates_of(job, link).empty();
}

LinkTraffic traffic_of(const trace::NodeTrace& node, std::uint16_t link) {
  LinkTraffic sum;
  std::map<std::uint32_t, double> busy_us;
  for_each_traffic(node, link, false, [&](const trace::TrafficTrace& traffic) {
    sum.bytes += static_cast<double>(traffic.sent_bytes);
    if (traffic.rtt_us > 0 && (sum.rtt_us == 0 || traffic.rtt_us < sum.rtt_us)) sum.rtt_us = traffic.rtt_us;
    sum.busy_us = std::max(sum.busy_us, busy_us[traffic.peer] += static_cast<double>(traffic.busy_us));
  });
  return sum;
}

std::vector<SlowNic> slow_nics(const JobTrace& job) {
  std::vector<SlowNic> found;
  if (job.nodes.empty()) return found;
  const auto messages = message_bytes(job);
  const std::size_t links = job.nodes.front().trace.header.links.size();
  for (std::uint16_t link = 0; link < links; ++link) {
    if (model::is_loopback(job.nodes.front().trace.header.links[link])) continue;
    if (messages.contains(link) && messages.at(link) < kLeastMessage) continue;
    const auto pushes = push_rates_of(job, link);
    for (const auto& node : job.nodes)
      if (const double share = push_share(pushes, node.trace.header.node); share < kSlow)
        found.push_back({.link = link, .node = node.trace.header.node, .sends = true, .share = share});
    const auto rates = rates_of(job, link);
    if (job.node_count() < 3) {
      if (const auto slow = slower_direction(rates, link); slow && slow->share < kSlow) found.push_back(*slow);
      continue;
    }
    const auto sending = best(rates, true), receiving = best(rates, false);
    const auto all_sent = together(rates, true), all_received = together(rates, false);
    for (const auto& node : job.nodes) {
      const std::uint32_t number = node.trace.header.node;
      const double sent = share_of(sending, number), received = share_of(receiving, number);
      if (std::min(sent, received) >= kSlow) continue;
      const bool sends = sent < kSlow, receives = received < kSlow;
      const double share =
          std::min(sends ? share_of(all_sent, number) : 1, receives ? share_of(all_received, number) : 1);
      found.push_back({.link = link, .node = number, .sends = sends, .receives = receives, .share = share});
    }
  }
  std::ranges::sort(found, {}, &SlowNic::share);
  return found;
}

std::vector<SlowServer> slow_servers(const JobTrace& job) {
  std::vector<SlowServer> found;
  if (job.nodes.empty()) return found;
  const std::size_t links = job.nodes.front().trace.header.links.size();
  for (std::uint16_t link = 0; link < links; ++link) {
    std::vector<std::map<std::uint32_t, double>> nodes;
    for (const auto& node : job.nodes) nodes.push_back(owed_us_per_byte(node.trace, link));
    for (const auto& [server, owed_us] : nodes.front())
      if (const double share = server_share(nodes, server); share < kSlow)
        found.push_back({.link = link, .server = server, .share = share});
  }
  std::ranges::sort(found, {}, &SlowServer::share);
  return found;
}

}  // namespace deft::replay
