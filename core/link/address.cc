#include "core/link/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "core/base/numbers.h"

namespace deft::link {

namespace {

// True of host:port. ZeroMQ would take the port 99999 for 34463. A `*` stands for any free port.
bool names_port(std::string_view host_and_port) {
  const std::size_t colon = host_and_port.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view port = host_and_port.substr(colon + 1);
  return port == "*" || parse_whole<std::uint16_t>(port).has_value();
}

}  // namespace

Result<Address> make_address(const std::string& ip, std::uint16_t port) {
  Address address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof *v4;
  } else if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.bytes = sizeof *v6;
  } else {
    return fail(ErrorKind::kInvalid, "'" + ip + "' is no IP address");
  }
  return address;
}

Result<std::uint16_t> port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0)
    return fail(ErrorKind::kInternal, std::string("getsockname: ") + std::strerror(errno));
  return storage.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port)
                                       : ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

std::string to_text(const std::string& ip, std::uint16_t port) { return ip + " " + std::to_string(port); }

Result<Address> from_text(std::span<const std::byte> text) {
  const std::string_view all(reinterpret_cast<const char*>(text.data()), text.size());
  const std::size_t space = all.find(' ');
  const auto port = parse_whole<std::uint16_t>(all.substr(space == std::string_view::npos ? all.size() : space + 1));
  if (port.value_or(0) != 0) return make_address(std::string(all.substr(0, space)), *port);
  return fail(ErrorKind::kInvalid, "no address and port");
}

bool is_ipv6(std::string_view host_and_port) {
  const std::string_view host = host_and_port.substr(0, host_and_port.rfind(':'));
  return host.find_first_of(":[") != std::string_view::npos;
}

bool is_loopback_address(std::string_view host_and_port) {
  const std::string host(host_and_port.substr(0, host_and_port.rfind(':')));
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET;
  return host == "localhost" || host == "[::1]" || host == "::1";
}

Result<std::string> listening_endpoint(const std::string& host_and_port) {
  constexpr std::string_view kHere = "localhost:";
  if (!names_port(host_and_port))
    return fail(ErrorKind::kInvalid,
                "cannot listen on " + host_and_port + ": it is no host:port with a port up to 65535",
                "DEFT_LISTEN is host:port with an address of this machine");
  if (is_ipv6(host_and_port))
    return fail(ErrorKind::kInvalid,
                "cannot listen on " + host_and_port + ": daemons and parameter servers talk over IPv4 only",
                "DEFT_LISTEN is host:port with an IPv4 address of this machine");
  if (host_and_port.starts_with(kHere)) return "tcp://127.0.0.1:" + host_and_port.substr(kHere.size());
  return "tcp://" + host_and_port;
}

}  // namespace deft::link
