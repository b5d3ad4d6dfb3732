// What a thread of the daemon does. Plain data, for links that name their threads and for traces that tell how busy these are.
#pragma once

#include <cstdint>
#include <string_view>

namespace deft::model {

// Traces have these numbers: another one comes at the end.
enum class DaemonThread : std::uint16_t {
  kReactor = 1,   // the event loop
  kAll = 2,       // all threads of the daemon together, whatever job they work for
  kLink = 3,      // runs a link's transfers: sums, encodes, decodes, copies. Of a link: as all below
  kReceives = 4,  // reads from the link's connections
  kAdds = 5,      // adds the nodes' segments, and sends results
  kCollects = 6,  // waits for results, and sends segments
  kEncrypts = 7,  // seals and opens records
};
inline constexpr DaemonThread kLastDaemonThread = DaemonThread::kEncrypts;

constexpr bool is_of_link(DaemonThread thread) {
  return thread != DaemonThread::kReactor && thread != DaemonThread::kAll;
}

// "adds segments and sends results".
constexpr std::string_view work_of(DaemonThread thread) {
  switch (thread) {
    case DaemonThread::kReactor: return "event loop";
    case DaemonThread::kAll: return "all threads";
    case DaemonThread::kLink: return "sums, encodes and copies";
    case DaemonThread::kReceives: return "receives";
    case DaemonThread::kAdds: return "adds segments and sends results";
    case DaemonThread::kCollects: return "collects results and sends segments";
    case DaemonThread::kEncrypts: return "encrypts";
  }
  return "unknown";
}

}  // namespace deft::model
