#include "daemon/leader/link_failover.h"

#include <algorithm>

#include "core/model/link_names.h"

namespace deft::daemon {
namespace {

constexpr double kSlowestUsPerByte = 0.8;  // 10 Mbit/s: a slower link may be taken for stalled
constexpr double kSlower = 4;              // so may a link that is this many times slower than measured
constexpr TimeUs kLateReportUs = 50'000;   // a report of progress may come so much later than three heartbeats
constexpr std::size_t kMostNamed = 4;      // nodes, in an error

}  // namespace

LinkFailover::LinkFailover(const std::vector<model::LinkModel>& guesses, std::size_t nodes, const Timing& timing)
    : nodes_(nodes), timing_(timing) {
  for (const auto& guess : guesses) links_.emplace_back(guess).reached.resize(nodes);
}

std::vector<std::uint32_t> LinkFailover::epochs() const {
  std::vector<std::uint32_t> epochs;
  for (const auto& link : links_) epochs.push_back(link.epoch);
  return epochs;
}

std::uint64_t LinkFailover::order(std::uint32_t link, std::uint64_t bytes) {
  if (nodes_ > 1) links_[link].ordered[next_number_] = bytes;
  return next_number_++;
}

std::uint32_t LinkFailover::next_for_collective() {
  const auto count = static_cast<std::uint32_t>(links_.size());
  for (std::size_t tries = 0; tries < links_.size(); ++tries) {
    const std::uint32_t link = next_link_++ % count;
    if (!model::runs_in_workers(cost(link).name) && links_[link].lost.empty()) return link;
  }
  return next_link_++ % count;
}

bool LinkFailover::measure(std::uint32_t link, std::uint64_t bytes, TimeUs us, bool overlapped) {
  if (link >= links_.size() || !links_[link].lost.empty()) return false;
  links_[link].meter.add(bytes, static_cast<double>(us), overlapped);
  return true;
}

// The fastest link that is not lost and has not stood in for this one before.
std::optional<std::uint32_t> LinkFailover::substitute_for(std::uint32_t lost) const {
  if (nodes_ < 2 || model::runs_in_workers(cost(lost).name)) return std::nullopt;
  std::optional<std::uint32_t> best;
  for (std::uint32_t link = 0; link < links_.size(); ++link) {
    if (link == lost || !links_[link].lost.empty() || links_[lost].replacers.contains(link)) continue;
    if (model::runs_in_workers(cost(link).name)) continue;
    if (!best || cost(link).bytes_per_us > cost(*best).bytes_per_us) best = link;
  }
  return best;
}

Result<std::optional<LinkFailover::Loss>> LinkFailover::remove(const wire::LinkFailed& failed, bool replaceable,
                                                               TimeUs now_us) {
  if (failed.link >= links_.size()) return std::nullopt;
  Link& link = links_[failed.link];
  if (link.epoch != failed.epoch || link.stopping) return std::nullopt;
  const auto by = replaceable ? substitute_for(failed.link) : std::nullopt;
  if (!by) return tl::unexpected(failed.cause);
  const bool first = link.lost.empty();
  link.lost = failed.cause.message();
  link.cause = failed.cause;
  link.stopping = true;
  link.since_us = now_us;
  link.replacer = *by;
  link.replacers.insert(*by);
  link.stopped.assign(nodes_, std::nullopt);
  return Loss{{failed.link, failed.epoch, failed.cause}, *by, first};
}

std::optional<wire::LinkReplaced> LinkFailover::stopped(std::size_t node, const wire::LinkStopped& stopped) {
  if (stopped.link >= links_.size()) return std::nullopt;
  Link& link = links_[stopped.link];
  if (!link.stopping || stopped.epoch != link.epoch) return std::nullopt;
  link.stopped[node] = stopped.finished_below;
  if (std::ranges::any_of(link.stopped, [](const auto& told) { return !told; })) return std::nullopt;
  link.stopping = false;
  link.reached.assign(nodes_, {});
  link.oldest = ~std::uint64_t{0};
  return wire::LinkReplaced{stopped.link, ++link.epoch, link.replacer, **std::ranges::min_element(link.stopped)};
}

std::optional<wire::JobProgress> LinkFailover::progress(std::size_t node, const wire::NodeProgress& progress,
                                                        TimeUs now_us) {
  if (progress.links.size() != links_.size()) return std::nullopt;
  wire::JobProgress all;
  bool news = false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    const auto& told = progress.links[i];
    if (told.epoch == link.epoch) link.reached[node] = {told.finished_below, told.started_below, now_us};
    const std::uint64_t finished = std::ranges::min(link.reached, {}, &Reached::finished_below).finished_below;
    all.links.push_back({link.epoch, finished});
    link.ordered.erase(link.ordered.begin(), link.ordered.lower_bound(finished));
    news = news || finished > link.told_finished;
    link.told_finished = std::max(link.told_finished, finished);
  }
  if (!news || links_.size() < 2) return std::nullopt;
  return all;
}

// How long launches that all nodes have started may take to end.
TimeUs LinkFailover::patience_us(std::uint32_t link, std::uint64_t finished, std::uint64_t started) const {
  const auto& ordered = links_[link].ordered;
  double bytes = 0;
  for (auto it = ordered.lower_bound(finished); it != ordered.end() && it->first < started; ++it)
    bytes += static_cast<double>(it->second);
  const double us_per_byte = std::max(kSlowestUsPerByte, kSlower / cost(link).bytes_per_us);
  const TimeUs least = substitute_for(link) ? timing_.timeout_us / 4 : timing_.timeout_us * 3 / 4;
  return std::max(least, static_cast<TimeUs>(bytes * us_per_byte));
}

// A link stalls if the oldest launch that some node has not finished has been given to it on all nodes, and stays the oldest,
// while all daemons live.
std::optional<TimeUs> LinkFailover::stalled_us(std::uint32_t index, TimeUs now_us) {
  Link& link = links_[index];
  std::uint64_t finished = ~std::uint64_t{0}, started = finished;
  TimeUs heard_us = now_us;
  for (const Reached& node : link.reached) {
    finished = std::min(finished, node.finished_below);
    started = std::min(started, node.started_below);
    heard_us = std::min(heard_us, node.told_us);
  }
  const bool stands =
      finished < started && finished == link.oldest && now_us - heard_us < 3 * timing_.heartbeat_us + kLateReportUs;
  link.oldest = finished;
  if (!stands) link.moved_us = now_us;
  const TimeUs age = now_us - link.moved_us;
  return age > patience_us(index, finished, started) ? std::optional(age) : std::nullopt;
}

// No link tells which of its connections stands still. But some nodes may have got all of the oldest operation, and others not.
std::string LinkFailover::who_lacks_oldest(const Link& link, const NameOfNode& name_of) {
  std::string names;
  std::size_t count = 0;
  for (std::size_t node = 0; node < link.reached.size(); ++node) {
    if (link.reached[node].finished_below > link.oldest) continue;
    if (++count > kMostNamed) return "";
    names += (names.empty() ? "" : ", ") + name_of(node);
  }
  return count == link.reached.size() ? "" : "; the oldest of them has ended everywhere but on " + names;
}

Result<std::vector<wire::LinkFailed>> LinkFailover::watch(TimeUs now_us, const NameOfNode& name_of) {
  std::vector<wire::LinkFailed> stalls;
  for (std::uint32_t index = 0; index < links_.size(); ++index) {
    const Link& link = links_[index];
    if (link.stopping) {
      if (now_us - link.since_us > timing_.timeout_us / 2) return tl::unexpected(link.cause);
      continue;
    }
    if (const auto age = stalled_us(index, now_us))
      stalls.push_back({index,
                        link.epoch,
                        {ErrorKind::kTimeout,
                         "nothing has come through link " + cost(index).name + " for " + std::to_string(*age / 1000) +
                             " ms, with operations under way on all nodes" + who_lacks_oldest(link, name_of),
                         "look at this network between the nodes",
                         {}}});
  }
  return stalls;
}

}  // namespace deft::daemon
