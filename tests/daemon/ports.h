// Ports of 127.0.0.1 for tests of this process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/descriptor.h"

namespace deft::daemon {

// A port on which nobody listens. It is below the kernel's range (ip_local_port_range): the kernel may give a port of that
// range to a connection of any process before the test listens. No two calls of a process give the same.
inline int free_port() {
  constexpr int kFirst = 28'100, kPorts = 1'400;  // behind those of tests/process/ports.py, before Deft's own
  static int next = static_cast<int>(getpid());
  while (true) {
    const int port = kFirst + next++ % kPorts;
    const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(port));
    if (bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return port;
  }
}

}  // namespace deft::daemon
