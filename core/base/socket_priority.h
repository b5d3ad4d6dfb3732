// Makes the packets of a socket overtake other traffic that waits for a NIC.
//
//   put_first(fd);   // any socket of this process, connected or not
//
// It works if the kernel's queue in front of the NIC has priorities, as Linux's default (pfifo_fast) has. It needs no
// privilege. Only speed depends on it, so a failure is ignored. Any thread.
#pragma once

#include <sys/socket.h>

namespace deft {

inline void put_first(int fd) {
  constexpr int kInteractive = 6;  // TC_PRIO_INTERACTIVE: the highest that anyone may set
  setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &kInteractive, sizeof kInteractive);
}

}  // namespace deft
