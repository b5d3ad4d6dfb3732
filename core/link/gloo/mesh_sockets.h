// Lets some of this process's TCP connections go before others if both wait for a NIC.
#pragma once

#include <sys/socket.h>

#include <vector>

namespace deft::link::gloo_backend {

// Of all sockets that have one of these addresses on one of their ends: gloo keeps its sockets to itself, so they are
// told by that, in /proc/self/fd.
void put_first(const std::vector<sockaddr_storage>& ends);

}  // namespace deft::link::gloo_backend
