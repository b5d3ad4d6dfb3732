#include "core/replay/causes.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "core/model/link_names.h"
#include "core/replay/daemon_cpu.h"
#include "core/replay/links_traffic.h"
#include "core/replay/replay.h"

namespace deft::replay {
namespace {

// "gloo:eth0" -> "eth0".
std::string interface_of(const std::string& link) { return link.substr(link.find(':') + 1); }

Cause describe(const SlowNic& slow, const std::string& link) {
  const std::string node = "node" + std::to_string(slow.node), interface = interface_of(link);
  Cause cause{.cause = "slow-link", .where = node + "/" + interface, .what = ""};
  const std::string rate = percent(slow.share);
  if (model::has_servers(link)) {
    cause.where = node;
    cause.what = node + " sends to the parameter servers at " + rate + " of the other nodes' rate";
  } else if (!slow.certain) {
    const std::string other = "node" + std::to_string(1 - slow.node);
    cause.what = interface + " from " + node + " to " + other + " carries " + rate +
                 " of the rate of the other direction (it may be the NIC of either)";
  } else if (slow.sends && slow.receives) {
    cause.what = interface + " of " + node + " carries " + rate + " of the other nodes' rate";
  } else {
    cause.what =
        interface + " of " + node + (slow.sends ? " sends at " : " receives at ") + rate + " of the other nodes' rate";
  }
  return cause;
}

std::size_t count_of_servers(const std::string& link) {
  return static_cast<std::size_t>(std::ranges::count(link, '+')) + 1;
}

// How many times as much the link carries without this NIC. Servers that are fewer than the nodes carry more than a node's NIC does.
double times_without(const SlowNic& slow, const std::string& link, std::size_t nodes) {
  if (!model::has_servers(link)) return 1 / slow.share;
  const double of_servers = static_cast<double>(count_of_servers(link)) / static_cast<double>(nodes);
  return std::max(1.0, std::min(1.0, of_servers) / slow.share);
}

// The servers of `link` carry so many times as much. What a part costs beside its bytes is theirs, too: they wait for its first segment
// and for its last one, and answer each.
std::optional<MeasuredJob> with_faster_servers(const MeasuredJob& measured, const std::string& name, double times) {
  MeasuredJob mended = measured;
  const auto link = std::ranges::find(mended.profile.links, name, &model::ProfileLink::name);
  if (link == mended.profile.links.end() || !link->bytes_per_us) return std::nullopt;
  link->bytes_per_us = *link->bytes_per_us * times;
  link->latency_us /= times;
  return mended;
}

// "ps:10.0.0.8:29610+10.0.0.9:29610", 1 -> "10.0.0.9:29610".
std::string server_of(const std::string& link, std::uint32_t number) {
  std::size_t begin = link.find(':') + 1;
  for (; number > 0 && begin != 0; --number) begin = link.find('+', begin) + 1;
  if (begin == 0) return link;
  return link.substr(begin, link.find('+', begin) - begin);
}

}  // namespace

double replayed_us(const MeasuredJob& measured) {
  const auto prediction = replay(measured, {});
  return prediction ? prediction->step_us_p50 : 0;
}

std::string percent(double share) {
  char text[24];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

Cause with_gain(Cause cause, double before_us, double after_us) {
  cause.gain_us = after_us > 0 ? std::max(0.0, before_us - after_us) : 0;
  cause.share = before_us > 0 ? cause.gain_us / before_us : 0;
  return cause;
}

std::vector<Cause> slow_links(const Evidence& evidence) {
  std::vector<Cause> causes;
  for (const SlowNic& slow : slow_nics(evidence.job)) {
    const std::string& name = evidence.job.nodes.front().trace.header.links[slow.link];
    MeasuredJob mended = evidence.measured;
    const auto link = std::ranges::find(mended.profile.links, name, &model::ProfileLink::name);
    if (link == mended.profile.links.end() || !link->bytes_per_us) continue;
    link->bytes_per_us = *link->bytes_per_us * times_without(slow, name, evidence.job.node_count());
    causes.push_back(with_gain(describe(slow, name), evidence.step_us, replayed_us(mended)));
  }
  return causes;
}

std::vector<Cause> slow_parameter_servers(const Evidence& evidence) {
  std::vector<Cause> causes;
  for (const SlowServer& slow : slow_servers(evidence.job)) {
    const std::string& name = evidence.job.nodes.front().trace.header.links[slow.link];
    auto mended = with_faster_servers(evidence.measured, name, 1 / slow.share);
    if (!mended) continue;
    const std::string server = server_of(name, slow.server);
    const std::string what =
        "the parameter server " + server + " carries " + percent(slow.share) + " of the others' rate";
    causes.push_back(
        with_gain({.cause = "server", .where = server, .what = what}, evidence.step_us, replayed_us(*mended)));
  }
  return causes;
}

std::vector<Cause> few_servers(const Evidence& evidence) {
  std::vector<Cause> causes;
  const std::size_t nodes = evidence.job.node_count();
  for (std::size_t i = 0; i < evidence.measured.profile.links.size(); ++i) {
    const std::string& name = evidence.measured.profile.links[i].name;
    if (!model::has_servers(name)) continue;
    const std::size_t servers = count_of_servers(name);
    if (servers >= nodes) continue;  // a node's own NIC carries as much as a server's
    const auto mended =
        with_faster_servers(evidence.measured, name, static_cast<double>(servers + 1) / static_cast<double>(servers));
    if (!mended) continue;
    const std::string what =
        std::to_string(servers) + (servers == 1 ? " parameter server carries" : " parameter servers carry") +
        " the gradients of " + std::to_string(nodes) + " nodes: one more such server would share them";
    causes.push_back(
        with_gain({.cause = "server", .where = name, .what = what}, evidence.step_us, replayed_us(*mended)));
  }
  return causes;
}

std::vector<Cause> costly_stages(const Evidence& evidence, const TimeShares& shares) {
  std::vector<Cause> causes;
  const auto add = [&](Cause cause, double us) {
    causes.push_back(with_gain(std::move(cause), shares.step_us(), shares.step_us() - us));
  };
  add({.cause = "codec", .where = "", .what = "encoding and decoding the gradients cannot hide"}, shares.codec_us);
  Cause overhead{
      .cause = "overhead", .where = "", .what = "the daemons' own work (local sums, copies, wake-ups) cannot hide"};
  if (const auto busy = busy_thread(evidence.job)) {
    overhead.where = place_of(*busy, evidence.job);
    overhead.what += ", and " + sentence_of(*busy, evidence.job);
  }
  add(std::move(overhead), shares.daemon_us);
  return causes;
}

}  // namespace deft::replay
