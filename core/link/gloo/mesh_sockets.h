// A connection of a mesh, and what it has carried.
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

// Adds what the connection has carried. Nothing if it is closed.
void add_traffic(const PeerSocket& socket, PeerTraffic& sum);

}  // namespace deft::link::gloo_backend
