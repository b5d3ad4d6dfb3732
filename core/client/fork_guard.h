// Tells a process that was forked (a data loader's worker) from the one that attached.
//
// A forked child shares the sockets of its parent. It must neither speak on them nor keep them open: a daemon takes the
// end of the socket for the worker's death, and a child that outlives a killed parent would hide that. So a fork closes
// the child's copies of all guarded sockets, and everything that asks here(), refuses to run in the child.
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
