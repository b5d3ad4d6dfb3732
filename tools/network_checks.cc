// What makes a NIC slower than it looks, and what keeps packets from other nodes.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/descriptor.h"
#include "core/base/placement.h"
#include "core/link/link.h"
#include "tools/findings.h"
#include "tools/nic_facts.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 3'000'000;
constexpr int kLeastMtu = 1280;     // of IPv6
constexpr int kPlainMtu = 1500;     // of Ethernet
constexpr int kFastMbits = 25'000;  // from here on small packets cost more CPU than a core has

// The NICs of DEFT_LINKS, without loopback.
std::vector<NicFacts> nics_of_links(const std::string& grammar) {
  std::vector<std::string> names;
  if (const auto links = link::resolve_links(grammar, true))
    for (const auto& spec : *links)
      for (const std::string& name : nics_of(spec))
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::vector<NicFacts> nics = nic_facts(names);
  std::erase_if(nics, [](const NicFacts& nic) { return nic.loopback; });
  return nics;
}

Finding mtu_finding(const std::vector<NicFacts>& nics) {
  std::string text;
  bool small = false, plain_and_fast = false;
  for (const auto& nic : nics) {
    text += (text.empty() ? "" : ", ") + nic.name + " " + std::to_string(nic.mtu);
    small = small || nic.mtu < kLeastMtu;
    plain_and_fast = plain_and_fast || (nic.mtu <= kPlainMtu && nic.mbits >= kFastMbits);
  }
  if (small)
    return {Health::kWarn, "MTU", text,
            "so small packets cost much CPU time: ip link set NIC mtu 1500, on all nodes, if their network carries it"};
  if (plain_and_fast)
    return {
        Health::kWarn, "MTU", text,
        "a NIC so fast is bound by the CPU with small packets: ip link set NIC mtu 9000, on all nodes, if the switches "
        "carry it; deft probe compares the nodes"};
  return {Health::kOk, "MTU", text, ""};
}

Finding duplex_finding(const std::vector<NicFacts>& nics) {
  std::string half;
  for (const auto& nic : nics)
    if (nic.half_duplex) half += (half.empty() ? "" : ", ") + nic.name;
  if (half.empty()) return {Health::kOk, "duplex", "no NIC says that it is half duplex", ""};
  return {Health::kWarn, "duplex", half + ": half duplex, so it cannot send while it receives",
          "let both ends negotiate: ethtool -s NIC autoneg on, and the same on the switch; else another cable"};
}

Finding shaping_finding(const std::vector<NicFacts>& nics) {
  std::string text, first;
  for (const auto& nic : nics) {
    if (nic.shapers.empty()) continue;
    if (first.empty()) first = nic.name;
    text += (text.empty() ? "" : "; ") + nic.name + ": " + nic.shapers;
  }
  if (text.empty()) return {Health::kOk, "shaping", "tc slows no NIC down", ""};
  return {Health::kWarn, "shaping", text + ": tc delays or drops what it sends",
          "if nobody wants this: tc qdisc del dev " + first + " root (tc qdisc show tells the rate)"};
}

// gloo on all NICs but one.
std::string links_without(const NicFacts& left_out, const std::vector<NicFacts>& nics) {
  std::string names;
  for (const NicFacts& nic : nics)
    if (&nic != &left_out) names += (names.empty() ? "DEFT_LINKS=gloo:" : ",") + nic.name;
  return names;
}

// Two links that share a wire count twice, and get in each other's way.
Finding wires_finding(const std::vector<NicFacts>& nics) {
  for (std::size_t i = 0; i < nics.size(); ++i)
    for (std::size_t k = i + 1; k < nics.size(); ++k) {
      const NicFacts &a = nics[i], &b = nics[k];
      const std::string both = a.name + " and " + b.name;
      if (a.below == b.below)
        return {Health::kWarn, "wires", both + " are both on " + a.below,
                "name one of them: " + links_without(b, nics)};
      if (!a.network.empty() && a.network == b.network)
        return {Health::kWarn, "wires",
                both + " have addresses of one network, " + a.network +
                    ": without rules for each address (ip rule) the kernel sends all by one of them",
                "give each NIC a network of its own, or name one: " + links_without(b, nics)};
    }
  return {Health::kOk, "wires", nics.size() < 2 ? "one NIC" : "each NIC has a network of its own", ""};
}

}  // namespace

int connect_error(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return EINVAL;
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_INET;  // as daemons and servers ask
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return EADDRNOTAVAIL;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const Descriptor caller(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!caller.valid()) return errno;
  int error = connect(caller.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  if (error != EINPROGRESS) return error;
  pollfd waiting{caller.get(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(kPatienceUs / 1000)) != 1) return ETIMEDOUT;
  socklen_t size = sizeof error;
  getsockopt(caller.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::vector<Finding> check_nics(const Config& config) {
  const auto nics = nics_of_links(config.text("links"));
  if (nics.empty()) return {};
  return {mtu_finding(nics), duplex_finding(nics), shaping_finding(nics), wires_finding(nics)};
}

std::vector<Finding> check_leader(const Config& config) {
  const auto placement = find_placement(config, [](const char* name) -> const char* { return std::getenv(name); });
  if (!placement) return {};
  const std::string& leader = placement->leader;
  if (config.text("leader").empty() && leader.starts_with("127.0.0.1:")) return {};  // nobody has named one
  const int error = connect_error(leader);
  if (error == 0) return {{Health::kOk, "leader", leader + ": rank 0's daemon takes connections", ""}};
  if (error == ECONNREFUSED)
    return {{Health::kWarn, "leader", leader + ": the machine answers, and nobody listens there",
             "start the daemon there, with DEFT_LISTEN=" + leader}};
  if (error == EADDRNOTAVAIL)
    return {{Health::kFail, "leader", leader + ": no such name or address here", "correct DEFT_LEADER or MASTER_ADDR"}};
  return {{Health::kFail, "leader", leader + " does not answer: " + std::strerror(error),
           "a firewall between the nodes (iptables -S, nft list ruleset, the cloud's rules): open this port there, and "
           "from "
           "1024 on between all nodes; or the address is wrong"}};
}

}  // namespace deft::tools
