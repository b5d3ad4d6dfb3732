#include "tools/nic_facts.h"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/descriptor.h"
#include "tools/program_output.h"

namespace deft::tools {
namespace {

using nlohmann::json;

constexpr std::array kShapers = {"tbf", "htb", "hfsc", "cbq", "netem", "cake", "red", "choke", "plug"};

// A list that a program of iproute2 prints; an empty one if there is no such program.
json listed(const std::string& command) {
  const auto said = output_of("PATH=\"$PATH:/usr/sbin:/sbin\" " + command + " 2>/dev/null");
  json list = json::parse(said.text, nullptr, false);
  return list.is_array() ? list : json::array();
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  return request;
}

void ask_ethtool(int socket, NicFacts& nic) {
  ethtool_cmd settings{};
  settings.cmd = ETHTOOL_GSET;
  ifreq request = request_for(nic.name);
  request.ifr_data = reinterpret_cast<char*>(&settings);
  if (ioctl(socket, SIOCETHTOOL, &request) != 0) return;
  const std::uint32_t mbits = ethtool_cmd_speed(&settings);
  if (mbits != static_cast<std::uint32_t>(SPEED_UNKNOWN)) nic.mbits = static_cast<int>(mbits);
  nic.half_duplex = settings.duplex == DUPLEX_HALF;
}

std::string network_of(const std::string& address, unsigned prefix_bits) {
  in_addr binary{};
  if (prefix_bits > 32 || inet_pton(AF_INET, address.c_str(), &binary) != 1) return "";
  const std::uint32_t mask = prefix_bits == 0 ? 0 : ~std::uint32_t{0} << (32 - prefix_bits);
  binary.s_addr &= htonl(mask);
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &binary, text.data(), text.size());
  return std::string(text.data()) + "/" + std::to_string(prefix_bits);
}

void take_link(const json& told, NicFacts& nic) {
  const std::string kind = told.value(json::json_pointer("/linkinfo/info_kind"), "");
  if (kind == "vlan" || kind == "macvlan" || kind == "ipvlan") nic.below = told.value("link", nic.name);
  for (const auto& address : told.value("addr_info", json::array()))
    if (nic.network.empty() && address.value("family", "") == "inet")
      nic.network = network_of(address.value("local", ""), address.value("prefixlen", 33U));
}

void take_queue(const json& told, NicFacts& nic) {
  const std::string kind = told.value("kind", "");
  if (std::ranges::find(kShapers, kind) == kShapers.end() || nic.shapers.find(kind) != std::string::npos) return;
  nic.shapers += (nic.shapers.empty() ? "" : ", ") + kind;
}

}  // namespace

std::vector<NicFacts> nic_facts(std::span<const std::string> names) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const json links = listed("ip -j -d addr show"), queues = listed("tc -j qdisc show");
  std::vector<NicFacts> all;
  for (const std::string& name : names) {
    ifreq request = request_for(name);
    if (ioctl(socket.get(), SIOCGIFMTU, &request) != 0) continue;
    NicFacts nic;
    nic.name = nic.below = name;
    nic.mtu = request.ifr_mtu;
    if (ioctl(socket.get(), SIOCGIFFLAGS, &request) == 0) nic.loopback = (request.ifr_flags & IFF_LOOPBACK) != 0;
    ask_ethtool(socket.get(), nic);
    for (const auto& told : links)
      if (told.value("ifname", "") == name) take_link(told, nic);
    for (const auto& told : queues)
      if (told.value("dev", "") == name) take_queue(told, nic);
    all.push_back(std::move(nic));
  }
  return all;
}

std::vector<std::string> nics_of(const link::LinkSpec& spec) {
  std::vector<std::string> names;
  if (spec.backend == "ps") return names;
  std::istringstream list(spec.interface);
  for (std::string name; std::getline(list, name, '+');) names.push_back(name);
  return names;
}

}  // namespace deft::tools
