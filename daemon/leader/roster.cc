#include "daemon/leader/roster.h"

#include <algorithm>

#include "core/base/text.h"

namespace deft::daemon {
namespace {

std::string place(const wire::Join& join) { return join.host + " (rank " + describe_ranks(join.ranks) + ")"; }

bool has(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

Result<void> same_settings(const wire::Join& first, const wire::Join& join) {
  for (const auto& [name, value] : first.settings) {
    const auto it = join.settings.find(name);
    if (it == join.settings.end() && join.refusal) continue;  // it does not know
    const std::string other = it == join.settings.end() ? "(unset)" : it->second;
    if (other == value) continue;
    return fail(ErrorKind::kMismatch,
                "the nodes differ in '" + name + "': '" + value + "' on " + place(first) + ", '" + other + "' on " +
                    place(join),
                name.starts_with("links") ? "auto and patterns stand for each node's own NICs: name as many on each"
                                          : "give all workers the same settings");
  }
  return {};
}

}  // namespace

std::string describe_ranks(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (j > i) text += "-" + std::to_string(ranks[j]);
    i = j + 1;
  }
  return text;
}

std::string Roster::describe(std::size_t node) const {
  return "node " + std::to_string(node) + ": " + place(nodes_[node].join);
}

Result<void> Roster::check(const wire::Join& join) const {
  if (join.world != world_)
    return fail(ErrorKind::kMismatch,
                place(join) + " was started with a world size of " + std::to_string(join.world) + ", the leader with " +
                    std::to_string(world_),
                "give all workers the same WORLD_SIZE");
  for (const auto& node : nodes_)
    for (const auto rank : join.ranks)
      if (has(node.join.ranks, rank))
        return fail(
            ErrorKind::kMismatch,
            "two workers have rank " + std::to_string(rank) + ": on " + place(node.join) + " and on " + place(join),
            "give each worker its own RANK");
  if (nodes_.empty()) return {};
  const wire::Join& first = nodes_.front().join;
  if (join.deft_version != first.deft_version)
    return fail(ErrorKind::kMismatch,
                place(first) + " runs deftd " + first.deft_version + ", " + place(join) + " runs " + join.deft_version,
                "install the same version on all nodes");
  return same_settings(first, join);
}

Result<void> Roster::join(const Peer& peer, wire::Join join) {
  auto ok = check(join);
  nodes_.push_back({.peer = peer, .join = std::move(join), .left = {}});
  peers_.push_back(peer);
  return ok;
}

bool Roster::complete() const {
  std::size_t present = 0;
  for (const auto& node : nodes_) present += node.join.ranks.size();
  return present >= world_;
}

std::optional<Error> Roster::refusal() const {
  for (const auto& node : nodes_)
    if (node.join.refusal) return node.join.refusal;
  return std::nullopt;
}

Result<void> Roster::check_complete() const {
  if (auto refused = refusal()) return tl::unexpected(std::move(*refused));
  if (nodes_.size() > 1 && nodes_.front().join.links.empty())
    return fail(ErrorKind::kInvalid, "the nodes have no link between them", "name one by DEFT_LINKS");
  return {};
}

std::optional<std::uint64_t> Roster::note_refused(const Error& error, TimeUs now_us) {
  constexpr std::size_t kMostBytes = 500;  // a refusal's text is as long as its sender likes
  if (!refused_) refused_ = Error{error.kind, readable(error.message(), kMostBytes), {}, {}};
  return refusals_logged_.admit(now_us);
}

Error Roster::missing(TimeUs waited_us) const {
  if (auto refused = refusal()) return std::move(*refused);
  std::vector<bool> here(world_, false);
  std::string present;
  for (const auto& node : nodes_) {
    for (const auto rank : node.join.ranks)
      if (rank < world_) here[rank] = true;
    present += (present.empty() ? "" : "; ") + place(node.join);
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < world_; ++rank)
    if (!here[rank]) missing.push_back(rank);
  return {ErrorKind::kTimeout,
          "after " + std::to_string(waited_us / 1'000'000) + " s rank " + describe_ranks(missing) + " of " +
              std::to_string(world_) + " is missing; present: " + (present.empty() ? "nobody" : present) +
              (refused_ ? "; a daemon was refused meanwhile: " + refused_->what : ""),
          "start the missing workers, with DEFT_LEADER naming this daemon and its port reachable",
          {}};
}

Error Roster::without_links(TimeUs waited_us) const {
  std::string late;
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (!nodes_[node].links_open) late += (late.empty() ? "" : "; ") + describe(node);
  return {ErrorKind::kTimeout,
          "after " + std::to_string(waited_us / 1'000'000) + " s these nodes have not opened their links: " + late,
          "see the daemons' logs there; raise DEFT_TIMEOUT if workers start far apart",
          {}};
}

void Roster::number_nodes() {
  std::ranges::sort(nodes_, {}, [](const Node& node) { return std::ranges::min(node.join.ranks); });
  std::ranges::transform(nodes_, peers_.begin(), &Node::peer);
}

std::optional<std::size_t> Roster::index_of(const Peer& peer) const {
  const auto it = std::ranges::find(nodes_, peer, &Node::peer);
  if (it == nodes_.end()) return std::nullopt;
  return static_cast<std::size_t>(it - nodes_.begin());
}

bool Roster::open_links(std::size_t node) {
  nodes_[node].links_open = true;
  return std::ranges::all_of(nodes_, &Node::links_open);
}

void Roster::leave(const wire::Leave& leave) {
  for (auto& node : nodes_)
    for (const auto rank : leave.ranks)
      if (has(node.join.ranks, rank)) node.left.insert(rank);
}

double Roster::report_step(std::size_t node, double us) {
  nodes_[node].step_us = us;
  return std::ranges::max(nodes_, {}, &Node::step_us).step_us;
}

}  // namespace deft::daemon
