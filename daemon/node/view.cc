#include "daemon/node/view.h"

namespace deft::daemon {

Result<std::shared_ptr<const View>> View::make(std::uint64_t epoch, std::uint32_t world, wire::Joined joined,
                                               std::vector<link::LinkSpec> links) {
  constexpr std::uint32_t kNobody = ~0U;
  if (joined.node >= joined.nodes.size())
    return fail(ErrorKind::kViolation, "the leader counts " + std::to_string(joined.nodes.size()) +
                                           " nodes, and calls this one node " + std::to_string(joined.node));
  const std::shared_ptr<View> view(new View);
  view->node_of_rank_.assign(world, kNobody);
  std::uint32_t placed = 0;
  for (std::uint32_t node = 0; node < joined.nodes.size(); ++node) {
    for (const std::uint32_t rank : joined.nodes[node].ranks) {
      if (rank >= world || view->node_of_rank_[rank] != kNobody)
        return fail(ErrorKind::kViolation, "the leader gives rank " + std::to_string(rank) + " of " +
                                               std::to_string(world) + " to node " + std::to_string(node) +
                                               (rank >= world ? "" : " and to another one"));
      view->node_of_rank_[rank] = node;
      ++placed;
    }
  }
  if (placed != world)
    return fail(ErrorKind::kViolation,
                "the leader gives nodes to " + std::to_string(placed) + " ranks of " + std::to_string(world));
  view->epoch_ = epoch;
  view->node_ = joined.node;
  view->nodes_ = std::move(joined.nodes);
  view->links_ = std::move(links);
  return view;
}

std::size_t View::first_position() const {
  std::size_t before = 0;
  for (std::uint32_t node = 0; node < node_; ++node) before += nodes_[node].ranks.size();
  return before;
}

}  // namespace deft::daemon
