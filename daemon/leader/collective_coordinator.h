// Collectives of a job, on its leader: waits until all nodes ask for one, checks that they ask alike, and watches who does not.
//
//   CollectiveCoordinator collectives(nodes, world, timing);
//   if (auto ready = collectives.ask(node, request, now_us)) ...   // the last node asked: start it, or tell why it fails
//   auto watched = collectives.watch(now_us, is_gone);             // with every heartbeat
//
// No I/O, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class CollectiveCoordinator {
 public:
  struct Timing {
    TimeUs heartbeat_us = 0;      // between two calls of watch
    TimeUs warning_us = 0;        // a node that owes a request for this long is reported, and again after as long
    TimeUs stall_timeout_us = 0;  // the job ends when a node owes a request for longer
    TimeUs gone_us = 0;           // or for this long, if the node has ended
  };

  struct Ready {  // all nodes have asked
    std::string name;
    std::optional<Error> mismatch;      // it cannot run; the job goes on
    std::vector<std::uint64_t> counts;  // of each rank, in the order of nodes
    std::uint64_t bytes = 0;            // of the largest buffer
  };

  struct Owed {  // a node has not asked for what others wait for
    std::size_t node = 0;
    std::string name;
    TimeUs age_us = 0;
    bool gone = false;      // the node has ended: the job fails
    bool too_long = false;  // longer than stall_timeout_us: the job fails
  };

  CollectiveCoordinator(std::size_t nodes, std::uint32_t world, const Timing& timing)
      : nodes_(nodes), world_(world), timing_(timing) {}

  // Node `node` asks. A node that asks again before all have asked replaces its request.
  std::optional<Ready> ask(std::size_t node, wire::CollectiveReady request, TimeUs now_us);

  // What nodes owe for long enough to be told, the first that fails the job at the end.
  [[nodiscard]] std::vector<Owed> watch(TimeUs now_us, const std::function<bool(std::size_t node)>& is_gone) const;

 private:
  struct Pending {
    std::vector<std::optional<wire::CollectiveReady>> requests;  // by node
    TimeUs since_us = 0;
  };
  [[nodiscard]] std::optional<Error> mismatch(const std::string& name, const Pending& pending) const;

  const std::size_t nodes_;
  const std::uint32_t world_;
  const Timing timing_;
  std::map<std::string, Pending> pending_;
};

}  // namespace deft::daemon
