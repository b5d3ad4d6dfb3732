// The processor time of a link's own threads; the thread that polls the link is none of them. Traces tell by it which thread is busy.
//
//   if (const auto* threads = dynamic_cast<const ThreadClocks*>(link))          // gloo has them
//     for (const ThreadClock& thread : threads->thread_clocks()) clock_gettime(thread.clock, &used);
#pragma once

#include <pthread.h>

#include <cstdint>
#include <ctime>
#include <vector>

#include "core/model/daemon_thread.h"

namespace deft::link {

struct ThreadClock {
  model::DaemonThread thread{};
  std::uint16_t number = 0;  // of the link's threads that do the same
  clockid_t clock = {};      // of its processor time
};

class ThreadClocks {
 public:
  virtual ~ThreadClocks() = default;
  // The clocks of the threads that run now. Only the thread that polls the link may call it.
  [[nodiscard]] virtual std::vector<ThreadClock> thread_clocks() const = 0;

 protected:
  ThreadClocks() = default;
  ThreadClocks(const ThreadClocks&) = default;
  ThreadClocks& operator=(const ThreadClocks&) = default;
};

// Adds the clock of a thread that has not ended.
inline void add_clock(std::vector<ThreadClock>& clocks, model::DaemonThread thread, std::uint16_t number,
                      pthread_t handle) {
  clockid_t clock{};
  if (pthread_getcpuclockid(handle, &clock) == 0) clocks.push_back({thread, number, clock});
}

}  // namespace deft::link
