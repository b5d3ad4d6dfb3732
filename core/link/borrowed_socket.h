// A connection of a mesh, and its traffic.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/link/traffic.h"

namespace deft::link::gloo_backend {

// gloo owns the connection and may close it at any time, so its ends are compared again before it is asked.
struct PeerSocket {
  std::uint32_t peer = 0;
  int fd = -1;
  sockaddr_storage own{}, other{};
};

PeerSocket peer_socket(std::uint32_t peer, int fd);  // `fd` is connected

// Adds the traffic of the connection. A closed one adds nothing.
void add_traffic(const PeerSocket& socket, PeerTraffic& sum);

}  // namespace deft::link::gloo_backend
