// Reads from the kernel what decides how a NIC carries gradients: its MTU, its duplex mode, what shapes it, what lies below it.
//
//   for (const NicFacts& nic : nic_facts({"eth0", "eth1"})) print(nic.name, nic.mtu, nic.shapers);
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/link/group.h"

namespace deft::tools {

struct NicFacts {
  std::string name;
  int mtu = 0;
  int mbits = 0;  // the speed that it claims; 0: it tells none
  bool half_duplex = false;
  bool loopback = false;
  std::string below;    // the NIC that a VLAN or macvlan uses; its own name if there is none
  std::string network;  // of its first IPv4 address: 10.0.0.0/24; empty without one
  std::string shapers;  // queueing disciplines that delay or drop: "tbf, netem"; empty: none
};

// Facts about those of these NICs that exist. `ip` and `tc` (iproute2) tell them. Without both, only MTU, speed and duplex mode are known.
std::vector<NicFacts> nic_facts(std::span<const std::string> names);

// The names of a link's NICs: gloo:eth0 has one, nccl:eth0+eth1 two. None of parameter servers, and where the backend chooses itself.
std::vector<std::string> nics_of(const link::LinkSpec& spec);

}  // namespace deft::tools
