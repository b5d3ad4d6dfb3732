// How busy the threads of the daemons were, from their traces. Older versions tell nothing of it.
//
//   for (const ThreadUse& thread : thread_uses(job)) ... thread.share, thread.busy
//   if (const auto thread = busy_thread(job)) warn(sentence_of(*thread, job));
//
// A link's thread has something to do only while the link has transfers. So what its time is compared with is that time: a thread that
// was busy nearly all of it bounds the link, whatever its NIC can carry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/daemon_thread.h"
#include "core/replay/job_trace.h"

namespace deft::replay {

struct ThreadUse {
  std::uint32_t node = 0;
  std::uint16_t link = 0;  // whose it is, if it is of a link
  model::DaemonThread thread{};
  std::uint16_t number = 0;  // of those of the link that do the same
  double share = 0;          // processor time over all time; of all threads together it may be above 1
  double busy = 0;           // a link's thread: over the time in which the link had transfers, at most 1; else `share`
  double seconds = 0;        // of processor time
};

// By node, link and thread.
std::vector<ThreadUse> thread_uses(const JobTrace& job);

// The thread that had least time left, if it was busy nearly all the time.
std::optional<ThreadUse> busy_thread(const JobTrace& job);

// "node1/eth0", "node1".
std::string place_of(const ThreadUse& use, const JobTrace& job);
// "the thread of node1 that receives for gloo:eth0 was busy 97 % of the time in which that link had transfers".
std::string sentence_of(const ThreadUse& use, const JobTrace& job);

}  // namespace deft::replay
