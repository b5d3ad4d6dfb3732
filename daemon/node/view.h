// Says who takes part in a job, seen from one node. A view is immutable, and is replaced as a whole if the membership changes.
//
//   auto view = View::make(epoch, world, joined, links);   // once the leader has told all nodes
//   (*view)->node_of_rank()[7];  (*view)->nodes()[2].host;
//
// Whatever depends on the membership (the node of a rank, the order of blocks in an all-gather, who sums with whom) is read
// from here at each use and copied nowhere. What lives longer stands apart: the job's identity, settings and local workers are in
// Membership. The gradient groups stand apart, too: they are declared one after the other while a view is in force, and
// each of them is agreed by all nodes of the view. Thread-safe, as nothing changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/link/link.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class View {
 public:
  // `epoch` differs for each view of a job: the leader's incarnation of it. `links`: of this node; each node has as many.
  // kViolation if the nodes do not have each rank below `world` exactly once, or if `joined.node` does not exist.
  static Result<std::shared_ptr<const View>> make(std::uint64_t epoch, std::uint32_t world, wire::Joined joined,
                                                  std::vector<link::LinkSpec> links);

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  [[nodiscard]] std::uint32_t world() const { return static_cast<std::uint32_t>(node_of_rank_.size()); }
  [[nodiscard]] std::uint32_t node() const { return node_; }  // this node's index
  [[nodiscard]] std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  [[nodiscard]] const std::vector<wire::NodeInfo>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::uint32_t>& node_of_rank() const { return node_of_rank_; }
  [[nodiscard]] bool is_local(std::uint32_t rank) const { return rank < world() && node_of_rank_[rank] == node_; }
  [[nodiscard]] const std::vector<link::LinkSpec>& links() const { return links_; }
  // The position of the first local rank if the ranks are counted node by node.
  [[nodiscard]] std::size_t first_position() const;

 private:
  View() = default;

  std::uint64_t epoch_ = 0;
  std::uint32_t node_ = 0;
  std::vector<wire::NodeInfo> nodes_;
  std::vector<std::uint32_t> node_of_rank_;
  std::vector<link::LinkSpec> links_;
};

}  // namespace deft::daemon
