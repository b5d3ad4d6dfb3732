#include "tools/probe_findings.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

namespace deft::tools {
namespace {

// An all-reduce of two nodes sends as many bytes each way as a broadcast one way, and at the same time. On a half-duplex link it takes
// twice as long.
constexpr double kHalfDuplex = 0.62;
constexpr double kSlowerBack = 0.5;
constexpr double kSharesWire = 0.65;  // of two links on one wire each has half
constexpr double kCpuBound = 1500;  // bytes a us: above, one core may be the bound, and rates say little about the wire

std::string rate(double bytes_per_us) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.1f MB/s", bytes_per_us);
  return text.data();
}

// What the largest transfers of a row carried. The fit is for plans: it weighs small transfers as much as large ones.
double carried(const ProbeRow& row) {
  return row.samples.empty() ? 0 : static_cast<double>(row.samples.back().bytes) / row.samples.back().us;
}

bool is_judged(const std::vector<ProbeNode>& nodes, const ProbeRow& row) {
  const auto over_loopback = [&](std::uint32_t node) {
    const std::string& address = nodes[node].addresses[row.link];
    return address.empty() || address.starts_with("127.") || address == "::1";
  };
  return row.error.empty() && std::ranges::none_of(row.nodes, over_loopback) && carried(row) < kCpuBound;
}

void find_mtus(const std::vector<ProbeNode>& nodes, std::vector<Finding>& findings) {
  for (std::size_t link = 0; link < nodes.front().links.size(); ++link) {
    std::set<int> different;
    std::string text;
    for (const auto& node : nodes) {
      if (node.mtus[link] == 0) continue;
      different.insert(node.mtus[link]);
      text += (text.empty() ? "" : "; ") + node.links[link] + " on " + node.host + " (rank " +
              std::to_string(node.rank) + ") has " + std::to_string(node.mtus[link]);
    }
    if (different.size() > 1)
      findings.push_back({Health::kWarn, "MTU", text,
                          "large packets of one may get lost at the other: ip link set NIC mtu " +
                              std::to_string(*different.begin()) + " on all nodes"});
  }
}

void find_duplex(const std::vector<ProbeNode>& nodes, const ProbeRow& row, std::vector<Finding>& findings) {
  if (row.at_once || row.one_way.size() != 2 || !is_judged(nodes, row)) return;
  const auto [slow, fast] = std::minmax(row.one_way[0], row.one_way[1]);
  const double both = carried(row);
  const std::string who = nodes[row.nodes[0]].links[row.link] + " between nodes " + std::to_string(row.nodes[0]) +
                          " and " + std::to_string(row.nodes[1]);
  if (slow < kSlowerBack * fast)
    findings.push_back(
        {Health::kWarn, "duplex", who + ": " + rate(row.one_way[0]) + " one way, and " + rate(row.one_way[1]) + " back",
         "the two ends of a cable may differ in their duplex mode: ethtool NIC, on both nodes and on the "
         "switch; or tc shapes one of them: deft doctor"});
  else if (both < kHalfDuplex * slow)
    findings.push_back({Health::kWarn, "duplex",
                        who + ": " + rate(slow) + " one way, but " + rate(both) + " if both send at once",
                        "it is half duplex, or shares a path with what comes back (a tunnel, Wi-Fi, a busy uplink): "
                        "ethtool NIC, on both nodes and on the switch"});
}

// The links without those that win nothing. Of links that slow each other down the list keeps the one that is the fastest alone.
std::string links_to_keep(const std::vector<std::string>& links, const std::map<std::size_t, double>& slowed) {
  const auto best = std::ranges::max_element(slowed, {}, [](const auto& one) { return one.second; });
  std::string text;
  for (std::size_t link = 0; link < links.size(); ++link)
    if (!slowed.contains(link) || link == best->first) text += (text.empty() ? "" : ",") + links[link];
  return text;
}

void find_shared_wires(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows,
                       std::vector<Finding>& findings) {
  std::string text;
  std::map<std::size_t, double> slowed;  // links, and what they carry alone
  for (const auto& together : rows) {
    if (!together.at_once || !is_judged(nodes, together)) continue;
    const auto alone = std::ranges::find_if(rows, [&](const ProbeRow& row) {
      return !row.at_once && row.link == together.link && row.nodes == together.nodes && is_judged(nodes, row);
    });
    if (alone == rows.end() || carried(together) > kSharesWire * carried(*alone)) continue;
    slowed[together.link] = carried(*alone);
    text += (text.empty() ? "" : "; ") + nodes.front().links[together.link] + " carries " + rate(carried(*alone)) +
            " alone, " + rate(carried(together)) + " with the others";
  }
  if (slowed.size() < 2) return;
  findings.push_back({Health::kWarn, "wires", text,
                      "these links share a wire, an uplink or a processor: more of them win nothing, so name one of "
                      "them: DEFT_LINKS=" +
                          links_to_keep(nodes.front().links, slowed)});
}

}  // namespace

std::vector<Finding> probe_findings(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows) {
  std::vector<Finding> findings;
  if (nodes.empty()) return findings;
  find_mtus(nodes, findings);
  for (const auto& row : rows) find_duplex(nodes, row, findings);
  find_shared_wires(nodes, rows, findings);
  return findings;
}

}  // namespace deft::tools
