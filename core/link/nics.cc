#include "core/link/nics.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

namespace deft::link {
namespace {

// The text of an address that peers can connect to; empty if it is none.
std::string usable_address(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return text;
}

Nic& entry_of(std::vector<Nic>& nics, const ifaddrs& record) {
  const auto known = std::ranges::find(nics, std::string_view(record.ifa_name), &Nic::name);
  if (known != nics.end()) return *known;
  Nic nic;
  nic.name = record.ifa_name;
  nic.up = (record.ifa_flags & IFF_UP) != 0;
  nic.running = (record.ifa_flags & IFF_RUNNING) != 0;
  nic.loopback = (record.ifa_flags & IFF_LOOPBACK) != 0;
  return nics.emplace_back(std::move(nic));
}

}  // namespace

std::vector<Nic> list_nics() {
  std::vector<Nic> nics;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return nics;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* record = first; record != nullptr; record = record->ifa_next) {
      Nic& nic = entry_of(nics, *record);
      if (record->ifa_addr == nullptr || record->ifa_addr->sa_family != family || !nic.address.empty()) continue;
      nic.address = usable_address(record->ifa_addr);
    }
  }
  return nics;
}

}  // namespace deft::link
