// Addresses of the members of a link, as sockets and as text: "10.0.0.1 4711".
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace deft::link {

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
};

// An IPv4 or IPv6 address without names; kInvalid if `ip` is not an address.
Result<Address> make_address(const std::string& ip, std::uint16_t port);

// The port that a bound socket has.
Result<std::uint16_t> port_of(int socket);

// The text of an address that a member publishes, and back. kInvalid for another text.
std::string to_text(const std::string& ip, std::uint16_t port);
Result<Address> from_text(std::span<const std::byte> text);

// True if the host of host:port is an IPv6 address, in brackets or not. Daemons and parameter servers talk over IPv4 only.
bool is_ipv6(std::string_view host_and_port);

// True if the host of host:port is the machine itself, on whichever machine it is read. A name that begins with 127. is no such host,
// because a name server decides where it leads.
bool is_loopback_address(std::string_view host_and_port);

// ZeroMQ's name for host:port to listen on. It knows the addresses of this machine, and not the name localhost. kInvalid for IPv6.
Result<std::string> listening_endpoint(const std::string& host_and_port);

}  // namespace deft::link
