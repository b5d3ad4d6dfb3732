// A TCP connection that a library (gloo, ZeroMQ) owns, and what the kernel has counted on it.
//
//   const BorrowedSocket socket = borrow_socket(peer, fd);      // while it is connected
//   add_kernel_traffic(socket, sums[peer]);                     // at any time later
//
// The library may close the connection at any time, and the number may then belong to another one. So its ends are compared
// again before the kernel is asked.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "core/link/traffic.h"

namespace deft::link {

struct BorrowedSocket {
  std::uint32_t peer = 0;
  int fd = -1;
  sockaddr_storage own{}, other{};
};

BorrowedSocket borrow_socket(std::uint32_t peer, int fd);

// What its owner has read from it. Nothing: the connection has been closed.
std::optional<std::uint64_t> read_bytes(const BorrowedSocket& socket);

// Ends the connection, which its owner then notices. A closed one: nothing.
void shut_down(const BorrowedSocket& socket);

// Adds the acknowledged bytes, the time in which some were not acknowledged, and the packets sent again, and takes the
// least round trip. A closed connection adds nothing.
void add_kernel_traffic(const BorrowedSocket& socket, PeerTraffic& sum);

}  // namespace deft::link
