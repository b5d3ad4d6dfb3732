// Runs the launches of one link of a job on this node. There are two kinds:
//
//   DaemonDriver     the daemon owns the link (gloo, mpi, ps): it sums the local workers' gradients and sends the sum
//   InProcessDriver  the workers own the link (nccl, tcp): the daemon tells them when to start, and counts their answers
//
//   driver->start(launch);          // in the leader's order, the same on all nodes
//   ... on_done({.token = launch.number, ...})        // a callback on the reactor, for each launch that has ended
//   driver->abort("job failed");    // no callback afterwards
//   while (!driver->finished()) ... // until the link uses no memory any more
//
// Reactor thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/shm/record.h"
#include "daemon/channel/transfer.h"

namespace deft::daemon {

class LinkDriver {
 public:
  using OnOpen = std::function<void(Result<void>)>;  // once: the link is open, or why it cannot be opened
  using OnDone = std::function<void(TransferDone)>;

  virtual ~LinkDriver() = default;

  virtual void start(const SubCommTask& launch) = 0;

  // Everything in flight ends without a callback. More than once is harmless.
  virtual void abort(const std::string& reason) = 0;
  // After abort(): nothing of this link runs, so the destructor does not wait.
  [[nodiscard]] virtual bool finished() = 0;

  // The local worker `worker` has run one record of launch `token`. kViolation if it was not told to.
  virtual Result<void> answered(std::size_t worker, std::uint64_t token) = 0;
  // The local worker `worker` runs a record of launch `token`, and waits for other ranks. kViolation if it was not told to.
  virtual Result<void> waits(std::size_t worker, std::uint64_t token) = 0;
  // All launches before `number` were given to the link. All before the result are under way or have ended, as far as is known.
  [[nodiscard]] virtual std::uint64_t under_way_below(std::uint64_t number) const = 0;
  // What the local worker has sent or received for a record that it runs. kViolation if that was not asked for, or cannot be.
  virtual Result<void> moved(std::size_t worker, const shm::SegmentRecord& segment) = 0;

  // True if the daemon owns the link. Only then another link can take its place (see link_queue.h).
  [[nodiscard]] virtual bool runs_in_daemon() const = 0;
};

}  // namespace deft::daemon
