// The leader's decisions about links that die or stall: which other one stands in, and from which launch on. What the nodes
// do is in job_lost_links.cc. With no link left that could, the job fails as it does with one link.
#include <glog/logging.h>

#include <algorithm>

#include "core/link/backends.h"
#include "daemon/leader/leader.h"

namespace deft::daemon {
namespace {

constexpr double kSlowestUsPerByte = 0.8;  // 10 Mbit/s: what is slower may be taken for stalled
constexpr double kSlower = 4;              // as measured, times this: may be taken for stalled

}  // namespace

std::optional<std::uint32_t> Leader::substitute_for(std::uint32_t lost) const {
  const auto gone = [](const Member& member) { return member.gone(); };
  if (state_ != State::kRunning || members_.size() < 2 || std::ranges::any_of(members_, gone)) return std::nullopt;
  if (link::runs_in_worker(links_[lost].model().name)) return std::nullopt;
  std::optional<std::uint32_t> best;
  for (std::uint32_t link = 0; link < links_.size(); ++link) {
    if (link == lost || !link_states_[link].lost.empty() || link_states_[lost].replacers.count(link) != 0) continue;
    if (link::runs_in_worker(links_[link].model().name)) continue;
    if (!best || links_[link].model().bytes_per_us > links_[*best].model().bytes_per_us) best = link;
  }
  return best;
}

void Leader::on_link_failed(std::uint32_t link, std::uint32_t epoch, const Error& error) {
  if (link >= link_states_.size()) return;
  LinkState& state = link_states_[link];
  if (state.epoch != epoch || state.stopping) return;
  const auto by = substitute_for(link);
  if (!by) return on_failure({error, true});
  LOG(WARNING) << "[" << job_ << "] link " << links_[link].model().name << " is lost: " << error.message()
               << "; the job goes on over " << links_[*by].model().name;
  const bool first = state.lost.empty();
  state.lost = error.message();
  state.error = error;
  state.stopping = true;
  state.since_us = MonotonicClock::now();
  state.replacer = *by;
  state.replacers.insert(*by);
  state.stopped.assign(members_.size(), std::nullopt);
  broadcast(wire::LinkStop{link, epoch, error});
  suspect(error, true);  // it may have failed because a node was lost
  if (!first) return;
  for (auto& [id, group] : groups_) {
    if (!group.scheduler) continue;
    group.scheduler->link_lost(link);
    pump(id);
  }
}

void Leader::on_link_stopped(std::size_t node, const wire::LinkStopped& stopped) {
  if (stopped.link >= link_states_.size()) return;
  LinkState& state = link_states_[stopped.link];
  if (!state.stopping || stopped.epoch != state.epoch) return;
  state.stopped[node] = stopped.finished_below;
  if (std::ranges::any_of(state.stopped, [](const auto& told) { return !told; })) return;
  const std::uint64_t from = **std::ranges::min_element(state.stopped);
  ++state.epoch;
  state.stopping = false;
  state.progress.assign(members_.size(), {});
  state.oldest = ~std::uint64_t{0};
  broadcast(wire::LinkReplaced{stopped.link, state.epoch, state.replacer, from});
}

void Leader::on_link_progress(std::size_t node, const wire::NodeProgress& progress) {
  if (progress.links.size() != link_states_.size()) return;
  wire::JobProgress all;
  bool news = false;
  for (std::size_t link = 0; link < link_states_.size(); ++link) {
    LinkState& state = link_states_[link];
    const auto& told = progress.links[link];
    if (told.epoch == state.epoch)
      state.progress[node] = {told.finished_below, told.started_below, MonotonicClock::now()};
    const std::uint64_t finished = std::ranges::min(state.progress, {}, &Progress::finished_below).finished_below;
    all.links.push_back({state.epoch, finished});
    state.ordered.erase(state.ordered.begin(), state.ordered.lower_bound(finished));
    news = news || finished > state.told_finished;
    state.told_finished = std::max(state.told_finished, finished);
  }
  if (news && link_states_.size() > 1) broadcast(all);
}

// Under the next number.
void Leader::note_ordered(std::uint32_t link, std::uint64_t bytes) {
  if (members_.size() > 1) link_states_[link].ordered[next_number_] = bytes;
}

// How long launches that all nodes have started may take to end.
TimeUs Leader::patience_us(std::uint32_t link, std::uint64_t finished, std::uint64_t started) const {
  const LinkState& state = link_states_[link];
  double bytes = 0;
  for (auto it = state.ordered.lower_bound(finished); it != state.ordered.end() && it->first < started; ++it)
    bytes += static_cast<double>(it->second);
  const double us_per_byte = std::max(kSlowestUsPerByte, kSlower / links_[link].model().bytes_per_us);
  const TimeUs least = substitute_for(link) ? settings_.timeout_us / 4 : settings_.timeout_us * 3 / 4;
  return std::max(least, static_cast<TimeUs>(bytes * us_per_byte));
}

// A link stalls if the oldest launch that some node has not finished has been given to it on all nodes, and stays the oldest,
// while all daemons live.
void Leader::watch_links(TimeUs now_us) {
  for (std::uint32_t link = 0; link < link_states_.size() && state_ == State::kRunning; ++link) {
    LinkState& state = link_states_[link];
    if (link::runs_in_worker(links_[link].model().name)) continue;  // a worker may be stopped, and owe an answer
    if (state.stopping) {
      if (now_us - state.since_us > settings_.timeout_us / 2) fail_job(state.error);
      continue;
    }
    std::uint64_t finished = ~std::uint64_t{0}, started = finished;
    TimeUs heard_us = now_us;
    for (const Progress& node : state.progress) {
      finished = std::min(finished, node.finished_below);
      started = std::min(started, node.started_below);
      heard_us = std::min(heard_us, node.told_us);
    }
    const bool stands =
        finished < started && finished == state.oldest && now_us - heard_us < 3 * settings_.heartbeat_us() + 50'000;
    state.oldest = finished;
    if (!stands) state.moved_us = now_us;
    const TimeUs age = now_us - state.moved_us;
    if (age <= patience_us(link, finished, started)) continue;
    on_link_failed(link, state.epoch,
                   {ErrorKind::kTimeout,
                    "nothing has come through link " + links_[link].model().name + " for " +
                        std::to_string(age / 1000) + " ms, with operations under way on all nodes",
                    "look at this network between the nodes",
                    {}});
  }
}

}  // namespace deft::daemon
