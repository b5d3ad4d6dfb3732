// Lets some of this process's TCP connections go before others where both wait for a NIC.
#pragma once

#include <sys/socket.h>

#include <vector>

#include "core/base/status.h"

namespace deft::link::gloo_backend {

// Of all connections that have one of these addresses on one of their ends: gloo keeps its sockets to itself, so they are
// told by that. It takes effect where the kernel's queue in front of the NIC has priorities, as Linux's default (pfifo_fast)
// has, and needs no privilege. An error where there is no such connection.
Result<void> put_first(const std::vector<sockaddr_storage>& ends);

}  // namespace deft::link::gloo_backend
