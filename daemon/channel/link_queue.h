// The launches of one link of a job on one node: launches that wait, launches under way, and launches that may have to be replayed.
//
//   queue.waiting.push_back(launch);                       // in the leader's order, the same on all nodes
//   queue.running.emplace(launch.number, launch);          // given to the driver, with a ReplayBuffer
//   queue.finished(launch);                                // done here, not yet known to be done everywhere
//   queue.release(number);                                 // all before `number` are done on all nodes
//   queue.replay(number);                                  // all from `number` on wait again, for another link
//
// A ring destroys the contribution of a node, and one node may have the result of an operation that another one saw fail; its
// worker may even have used and overwritten it. So a node keeps a copy of its contribution until all nodes have finished
// that launch. All nodes replay a launch that one of them has not finished, each with its copy. The sum is made
// of the same numbers in the same order, so it has the same bits, and a node that has it already leaves it at that.
// Reactor thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/link/traffic.h"
#include "daemon/base/duration_histogram.h"
#include "daemon/channel/link_driver.h"
#include "daemon/channel/spare_buffers.h"

namespace deft::daemon {

// The kernel's counts of a link's connections. Links whose sockets are in the daemon (gloo, ps) have them.
struct ConnectionCounters {
  [[nodiscard]] nlohmann::json json() const;

  std::uint64_t sent_bytes = 0;  // that nodes have acknowledged; of ps not known
  std::uint64_t resent_packets = 0;
  TimeUs unacknowledged_us = 0;    // in which a connection to a node had data under way: of all together
  std::uint32_t least_rtt_us = 0;  // to the nearest peer, in the newest measurement
};

// The work that a link has done, for the status.
struct LinkCounters {
  void add(const std::vector<link::PeerTraffic>& traffic);
  void add(const CodecLoss& loss);

  std::uint64_t parts = 0, merged_parts = 0, bytes = 0, wire_bytes = 0, replayed_parts = 0;
  TimeUs busy_us = 0;
  DurationHistogram transfers;  // the time of each transfer on the link, without transfers that overtook others
  std::optional<ConnectionCounters> connections;  // empty: the link has none, or has sent nothing yet
  CodecLoss codec_loss;                           // older ones count less
};

// A link that was lost goes on over another one's NIC or servers; each time is an epoch.
struct LinkOutage {
  std::uint32_t epoch = 0;
  bool stopping = false;              // between two epochs: nothing runs
  bool failure_told = false;          // to the leader, in this epoch
  std::string reason;                 // of the newest loss; empty: never lost
  std::uint32_t replacer = 0;         // the link that stands in now
  std::set<std::uint32_t> replacers;  // all that have stood in
};

struct LinkQueue {
  std::string name;
  std::unique_ptr<LinkDriver> driver;
  std::deque<SubCommTask> waiting;
  std::map<std::uint64_t, SubCommTask> running;
  std::map<std::uint64_t, SubCommTask> kept;  // done here, and perhaps not everywhere
  bool open = false;
  LinkCounters counters;
  LinkOutage outage;
  std::uint64_t untold_bytes = 0;  // finished since the leader was told
  SpareBuffers spare;

  // All launches before these numbers are finished here, or under way on the link; `next` is that of the next launch of all. While a link
  // opens, a launch that was given to it has not started.
  [[nodiscard]] std::uint64_t finished_below(std::uint64_t next) const;
  [[nodiscard]] std::uint64_t started_below(std::uint64_t next) const;
  [[nodiscard]] std::uint64_t waits_from(std::uint64_t next) const {
    return waiting.empty() ? next : waiting.front().number;
  }

  void finished(SubCommTask launch, std::size_t transferred);
  void release(std::uint64_t below);
  // An error if one of them cannot be replayed.
  Result<void> replay(std::uint64_t from);
};

}  // namespace deft::daemon
