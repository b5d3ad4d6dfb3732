// The links of a job, on its leader: their costs, lost and stalled ones, and the link that stands in for a lost one.
//
//   LinkFailover links(guesses, nodes, timing);
//   const std::uint64_t number = links.order(link, bytes);        // each launch and each collective, in their common order
//   links.measure(link, bytes, us, overlapped);
//   if (auto lost = links.remove(failed, replaceable, now_us)) ...   // LINK_STOP to all, then:
//   if (auto replaced = links.stopped(node, message)) ...          // LINK_REPLACED to all
//   if (auto news = links.progress(node, message, now_us)) ...     // JOB_PROGRESS to all
//   auto stalls = links.watch(now_us, name_of);                    // with every heartbeat of a running job
//
// The nodes' part is in daemon/node. If no link is left that could stand in, the job fails as it does with one link.
// No I/O, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/sched/link_meter.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class LinkFailover {
 public:
  struct Timing {
    TimeUs timeout_us = 0;    // of the job
    TimeUs heartbeat_us = 0;  // between two reports of progress of a node
  };

  struct Loss {
    wire::LinkStop stop;
    std::uint32_t by = 0;  // the link that stands in
    bool first = false;    // it is not a replacement that was lost
  };

  LinkFailover(const std::vector<model::LinkModel>& guesses, std::size_t nodes, const Timing& timing);

  [[nodiscard]] std::size_t size() const { return links_.size(); }
  [[nodiscard]] const model::LinkModel& cost(std::uint32_t link) const { return links_[link].meter.model(); }
  [[nodiscard]] const std::string& lost(std::uint32_t link) const {
    return links_[link].lost;
  }  // why; empty: it is not
  [[nodiscard]] std::vector<std::uint32_t> epochs() const;

  // The number of the next launch or collective, which moves so many bytes on this link.
  std::uint64_t order(std::uint32_t link, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t next_number() const { return next_number_; }
  // Takes turns: the links that the daemons run and that are not lost, because they need no copy to a GPU; all links if there are none.
  std::uint32_t next_for_collective();
  // A launch took so long. False: the estimate of the link's cost stays, as the link is lost.
  bool measure(std::uint32_t link, std::uint64_t bytes, TimeUs us, bool overlapped);

  // A link failed. Nothing if this is old news. Error: no other link can stand in; `replaceable` says whether one may, which needs
  // a running job.
  Result<std::optional<Loss>> remove(const wire::LinkFailed& failed, bool replaceable, TimeUs now_us);
  // A node has stopped a lost link. Gives the replacement once all have.
  std::optional<wire::LinkReplaced> stopped(std::size_t node, const wire::LinkStopped& stopped);
  // How far a node is. Gives how far all are, if that is news.
  std::optional<wire::JobProgress> progress(std::size_t node, const wire::NodeProgress& progress, TimeUs now_us);
  using NameOfNode = std::function<std::string(std::size_t node)>;
  // Links that stall, as failures. They name the nodes that lack what others have. Error: a node did not stop a lost link in time; the job
  // ends.
  Result<std::vector<wire::LinkFailed>> watch(TimeUs now_us, const NameOfNode& name_of);

 private:
  struct Reached {  // by a node, on a link
    std::uint64_t finished_below = 0, started_below = 0;
    TimeUs told_us = 0;
  };

  struct Link {
    explicit Link(const model::LinkModel& guess) : meter(guess) {}

    sched::LinkMeter meter;
    std::uint32_t epoch = 0;
    bool stopping = false;
    std::string lost;
    Error cause;
    TimeUs since_us = 0;  // it is stopping
    std::uint32_t replacer = 0;
    std::set<std::uint32_t> replacers;
    std::vector<std::optional<std::uint64_t>> stopped;  // by node: the first launch that had not finished there
    std::vector<Reached> reached;                       // by node
    std::uint64_t told_finished = 0;                    // below this all nodes know that all have finished
    std::map<std::uint64_t, std::uint64_t> ordered;     // bytes of launches that not all have finished
    std::uint64_t oldest = ~std::uint64_t{0};           // launch that not all have finished
    TimeUs moved_us = 0;                                // when `oldest` was last seen to change, or a node to owe it
  };

  [[nodiscard]] std::optional<std::uint32_t> substitute_for(std::uint32_t lost) const;
  [[nodiscard]] TimeUs patience_us(std::uint32_t link, std::uint64_t finished, std::uint64_t started) const;
  [[nodiscard]] std::optional<TimeUs> stalled_us(std::uint32_t link, TimeUs now_us);
  [[nodiscard]] static std::string who_lacks_oldest(const Link& link, const NameOfNode& name_of);

  const std::size_t nodes_;
  const Timing timing_;
  std::vector<Link> links_;
  std::uint64_t next_number_ = 0;
  std::uint32_t next_link_ = 0;
};

}  // namespace deft::daemon
