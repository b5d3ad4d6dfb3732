// The nodes of a job, as its leader knows them: who has come, whether they agree, and who has left.
//
//   Roster roster(world);
//   if (auto ok = roster.join(peer, join); !ok) fail_job(ok.error());
//   if (roster.complete()) roster.number_nodes();           // from here on nodes are known by their index
//   roster.index_of(peer);  roster.describe(node);
//
// No I/O, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/base/rate_limit.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class Roster {
 public:
  struct Node {
    Peer peer;
    wire::Join join;
    bool links_open = false;
    double step_us = 0;            // of its slowest worker; 0: not reported yet
    std::set<std::uint32_t> left;  // ranks that ended cleanly
    [[nodiscard]] bool gone() const { return left.size() == join.ranks.size(); }
  };

  explicit Roster(std::uint32_t world) : world_(world) {}

  // Takes a node that comes for the first time. kMismatch if it contradicts the nodes that are here: it is taken all the same, so
  // that it hears why the job fails.
  Result<void> join(const Peer& peer, wire::Join join);
  [[nodiscard]] bool complete() const;  // all ranks are here
  // Why the job cannot begin although all have come: a node cannot take part, or nodes without links between them.
  [[nodiscard]] Result<void> check_complete() const;
  // A daemon that is no node of the job (yet) was refused: the reason may be that of a missing node. The first one is kept. Gives
  // whether the log may say so, as RateLimit::admit does: anybody may come, and as often as he likes.
  std::optional<std::uint64_t> note_refused(const Error& error, TimeUs now_us);
  // Why it cannot begin by now: `waited_us` have passed.
  [[nodiscard]] Error missing(TimeUs waited_us) const;
  // All have come, and some have not opened their links after `waited_us`.
  [[nodiscard]] Error without_links(TimeUs waited_us) const;
  void number_nodes();  // in the order of their smallest ranks

  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<Peer>& peers() const { return peers_; }  // of the nodes
  [[nodiscard]] std::optional<std::size_t> index_of(const Peer& peer) const;
  [[nodiscard]] std::uint32_t world() const { return world_; }
  [[nodiscard]] std::uint32_t first_rank(std::size_t node) const { return nodes_[node].join.ranks.front(); }
  [[nodiscard]] std::string describe(std::size_t node) const;  // "node 1: host (rank 2-3)"

  bool open_links(std::size_t node);                // true: now all nodes have theirs open
  void leave(const wire::Leave& leave);             // ranks of any node
  double report_step(std::size_t node, double us);  // gives the time of the slowest node

 private:
  [[nodiscard]] Result<void> check(const wire::Join& join) const;
  [[nodiscard]] std::optional<Error> refusal() const;

  const std::uint32_t world_;
  std::vector<Node> nodes_;
  std::vector<Peer> peers_;
  std::optional<Error> refused_;  // why the first daemon that is no node of this job was refused
  RateLimit refusals_logged_;
};

// Ranks as people write them: "0-2, 5".
std::string describe_ranks(const std::vector<std::uint32_t>& ranks);

}  // namespace deft::daemon
