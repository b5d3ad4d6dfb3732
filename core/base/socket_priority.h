// Lets what a socket sends go before other traffic that waits for a NIC.
//
//   put_first(fd);   // any socket of this process, connected or not
//
// It takes effect where the kernel's queue in front of the NIC has priorities, as Linux's default (pfifo_fast) has, and
// needs no privilege. Only speed hangs on it: what cannot be done is left.
#pragma once

#include <sys/socket.h>

namespace deft {

inline void put_first(int fd) {
  constexpr int kInteractive = 6;  // TC_PRIO_INTERACTIVE: the highest that anyone may set
  setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &kInteractive, sizeof kInteractive);
}

}  // namespace deft
