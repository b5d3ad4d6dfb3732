// Two sockets of one TCP connection over loopback. They do not block, and the kernel keeps little on their way.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "core/base/descriptor.h"

namespace deft::link::testing {

struct TcpPair {
  Descriptor first, second;
};

inline TcpPair tcp_pair() {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  const int little = 128 << 10;
  setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);  // both are inherited
  setsockopt(listener.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  EXPECT_EQ(bind(listener.get(), name, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), name, &size), 0);
  TcpPair pair{Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Descriptor()};
  setsockopt(pair.first.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  setsockopt(pair.first.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  EXPECT_EQ(connect(pair.first.get(), name, size), 0);
  pair.second = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  EXPECT_EQ(fcntl(pair.first.get(), F_SETFL, O_NONBLOCK), 0);
  return pair;
}

}  // namespace deft::link::testing
