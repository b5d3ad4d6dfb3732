// The traffic of a link's connections: for traces, to tell which NIC is slow.
//
//   if (const auto* counters = dynamic_cast<const TrafficCounters*>(link))       // gloo and ps have them
//     for (const PeerTraffic& peer : counters->traffic()) ...                    // sums since the link was opened
//
// Of nodes the kernel counts the time in which a connection had data that the peer had not acknowledged. Waiting for a slow worker
// is not in it, because then there is nothing to send. So sent_bytes / busy_us is the rate at which this node's data travels.
//
// Of a parameter server the link counts the time in which it owed results. Waiting for the gradients of other nodes is in it, as long
// for one server as for another. So only the difference between servers tells which of them is slow. What the kernel counts of the
// connection to it tells how fast this node's gradients get there.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/clock.h"

namespace deft::link {

struct PeerTraffic {
  std::uint32_t peer = 0;  // node; or a server's place in the link's list
  bool is_server = false;
  std::uint64_t sent_bytes = 0;  // that it has acknowledged; a server: for which it has given results
  TimeUs busy_us = 0;            // of all connections to it together
  std::uint32_t resent = 0;      // packets that this node's kernel sent again
  std::uint32_t rtt_us = 0;      // the least round trip
  // A server: what it has acknowledged of this node's, and how long that was on its way, by the kernel.
  std::uint64_t pushed_bytes = 0;
  TimeUs pushing_us = 0;
};

class TrafficCounters {
 public:
  virtual ~TrafficCounters() = default;
  // A row for each peer. Only the thread that polls the link may call it.
  [[nodiscard]] virtual std::vector<PeerTraffic> traffic() const = 0;

 protected:
  TrafficCounters() = default;
  TrafficCounters(const TrafficCounters&) = default;
  TrafficCounters& operator=(const TrafficCounters&) = default;
};

}  // namespace deft::link
