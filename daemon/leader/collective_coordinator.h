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
#include "daemon/leader/late_nodes.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class CollectiveCoordinator {
 public:
  struct Ready {  // all nodes have asked
    std::string name;
    std::optional<Error> mismatch;      // it cannot run; the job goes on
    std::vector<std::uint64_t> counts;  // of each rank, in the order of nodes
    std::uint64_t bytes = 0;            // of the largest buffer
  };

  CollectiveCoordinator(std::size_t nodes, std::uint32_t world, const LateNodes::Timing& timing)
      : nodes_(nodes), world_(world), late_(timing, "asked for") {}

  // Node `node` asks. A node that asks again before all have asked replaces its request.
  std::optional<Ready> ask(std::size_t node, wire::CollectiveReady request, TimeUs now_us);

  // See LateNodes::watch().
  [[nodiscard]] std::vector<LateNodes::Owed> watch(TimeUs now_us,
                                                   const std::function<bool(std::size_t node)>& is_gone) {
    return late_.watch(now_us, is_gone);
  }

 private:
  using Requests = std::vector<std::optional<wire::CollectiveReady>>;  // by node
  [[nodiscard]] std::optional<Error> mismatch(const std::string& name, const Requests& requests) const;

  const std::size_t nodes_;
  const std::uint32_t world_;
  LateNodes late_;
  std::map<std::string, Requests> pending_;  // by name
};

}  // namespace deft::daemon
