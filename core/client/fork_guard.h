// Protects a socket from forked children (a data loader's workers) of the process that attached.
//
//   ForkGuard guard(channel.descriptor());
//   if (!guard.here()) return fail(...);   // this process is a forked child
//
// A forked child shares the sockets of its parent. It must not write to them. It must not keep them open either: the daemon
// learns of a worker's death by the end of the socket, and a child that outlives a killed parent would hide that. So a fork
// closes the child's copies of all guarded sockets, and functions that ask here() refuse to run in the child. Any thread.
#pragma once

#include <cstddef>

namespace deft::client {

class ForkGuard {
 public:
  explicit ForkGuard(int socket);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // False in a forked child.
  [[nodiscard]] bool here() const;

 private:
  unsigned generation_;
  std::size_t slot_;
};

}  // namespace deft::client
