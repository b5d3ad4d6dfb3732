// The network interfaces of this machine (of this network namespace), as links see them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/link/link.h"

namespace deft::link {

struct Nic {
  std::string name;
  std::string address;  // the first IPv4 address, or a global IPv6 address if there is none; empty without either
  bool up = false;
  bool running = false;  // has a carrier
  bool loopback = false;
};

// All NICs, in the kernel's order.
std::vector<Nic> list_nics();

// resolve_links on the NICs given.
Result<std::vector<LinkSpec>> choose_links(std::string_view grammar, bool loopback_allowed, std::span<const Nic> nics);

}  // namespace deft::link
