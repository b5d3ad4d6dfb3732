// The daemon's side of a link that the workers run themselves: START to all workers of this node, RAN from each of them.
//
// Every worker is a member of such a link, so there is nothing to sum or to copy here, and no thread: a launch is done
// when each worker has answered each of its records. A link that fails in a worker is told over its socket. Reactor thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "daemon/channel/executor.h"

namespace deft::daemon {

class WorkerRuns {
 public:
  using Tell = std::function<void(std::size_t worker, const shm::Record& record)>;

  // `link`: what START calls it. `tell` puts a record into a worker's completion ring.
  WorkerRuns(std::uint32_t link, std::size_t workers, Tell tell)
      : link_(link), workers_(workers), tell_(std::move(tell)) {}

  // Starts launch `token` of `bytes`: `records` has the same number of START records for each worker, by local index.
  void start(std::uint64_t token, std::size_t bytes, std::vector<std::vector<shm::Record>> records);

  // A launch that has nothing to send, as a barrier, is done at once.
  [[nodiscard]] std::optional<TransferDone> take_empty();

  // A worker's RAN: what is done by it, if anything. kViolation for a launch that the worker was not told to run.
  Result<std::optional<TransferDone>> ran(std::size_t worker, std::uint64_t token);

 private:
  struct Run {
    std::uint64_t token = 0;
    std::size_t bytes = 0;
    TimeUs started_us = 0;
    std::vector<std::size_t> owed;  // answers, by worker
  };
  TransferDone finish(const std::deque<Run>::iterator& run);
  [[nodiscard]] static bool is_done(const Run& run);

  const std::uint32_t link_;
  const std::size_t workers_;
  Tell tell_;
  std::deque<Run> runs_;
  TimeUs last_done_us_ = 0;  // a launch behind another one begins when that ends
};

}  // namespace deft::daemon
