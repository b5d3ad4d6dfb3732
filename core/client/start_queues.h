// The launches that the daemon has started on this worker's in-process links, for the threads that run them.
//
//   auto start = starts.next(link);   // waits for a START or START_COLLECTIVE
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "core/client/connection.h"

namespace deft::client {

class StartQueues {
 public:
  // One queue for each link that the daemon announced.
  explicit StartQueues(Connection& connection);

  // Waits for the oldest launch of `link`, which the daemon announced. An error if the job has failed or the session was closed.
  // Any thread.
  Result<shm::Record> next(std::uint32_t link);

  // Adds a launch. The caller holds the connection's lock. kViolation if the worker does not run that link.
  Result<void> push(std::uint32_t link, const shm::Record& start);

 private:
  Connection& connection_;
  std::map<std::uint32_t, std::deque<shm::Record>> starts_;
};

}  // namespace deft::client
