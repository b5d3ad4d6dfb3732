// Keeps signals away from threads of Deft's, which must never run a handler of the program's, and from libraries that write to sockets
// without MSG_NOSIGNAL, as gloo does: a peer that closes its end would kill the process by SIGPIPE.
//
//   const AllSignalsBlocked inherited;
//   thread_ = std::thread(...);
#pragma once

#include <csignal>

namespace deft {

// Blocks every signal while it lives. Threads started meanwhile inherit that.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked();
  ~AllSignalsBlocked();
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Blocks SIGPIPE for this thread while it lives, and takes one back that arose meanwhile.
class SigpipeBlocked {
 public:
  SigpipeBlocked();
  ~SigpipeBlocked();
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
  bool was_pending_;
};

}  // namespace deft
