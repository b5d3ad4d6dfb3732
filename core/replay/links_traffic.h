// The rates at which nodes really sent to each other and to parameter servers, from the counters in their traces.
//
//   for (const SlowNic& slow : slow_nics(job)) ... "node 1's eth0 carries 40 % of the others' rate"
//   for (const SlowServer& slow : slow_servers(job)) ... "the link's second server carries 40 % of the others' rate"
//
// With three or more nodes a slow NIC is found by comparing nodes: everything that it sends or receives is slow, and all else is
// not. Two nodes share their only connection, so only its two directions can be compared with each other. Of links with parameter servers
// the nodes count what they send, and nobody counts what each of them receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

// Sums over all peers and links that the traces tell.
struct LinkTraffic {
  double bytes = 0;
  double busy_us = 0;  // of the peer whose data travelled longest
  double rtt_us = 0;   // the least round trip
};
// What `node` sent over `link` to other nodes. Zero if the backend does not tell.
LinkTraffic traffic_of(const trace::NodeTrace& node, std::uint16_t link);

struct SlowNic {
  std::uint16_t link = 0;
  std::uint32_t node = 0;  // that has the NIC; if there are two nodes, the node that sends slowly
  bool sends = false;      // slowly
  bool receives = false;
  bool certain = true;  // false: of two nodes either NIC may be the slow one
  double share = 1;     // of the rate of the others, below 1
};

// Whether slow_nics() knows how fast each node sends to the servers of the link: of three nodes or more, if the traces tell it.
bool knows_pushes(const JobTrace& job, std::uint16_t link);

// The slowest first. None of a link over loopback: it has no NICs, and its rates tell how busy the processors are.
std::vector<SlowNic> slow_nics(const JobTrace& job);

struct SlowServer {
  std::uint16_t link = 0;
  std::uint32_t server = 0;  // its place in the link's list
  double share = 1;          // of the rate of the others, below 1
};

// The slowest first. Of a link with one server nothing is known.
std::vector<SlowServer> slow_servers(const JobTrace& job);

}  // namespace deft::replay
