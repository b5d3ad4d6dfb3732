#include "daemon/channel/link_queue.h"

#include <algorithm>

namespace deft::daemon {

nlohmann::json ConnectionCounters::json() const {
  nlohmann::json json{{"resent_packets", resent_packets}, {"least_rtt_us", least_rtt_us}};
  if (sent_bytes > 0) json.update({{"sent_bytes", sent_bytes}, {"unacknowledged_us", unacknowledged_us}});
  return json;
}

void LinkCounters::add(const std::vector<link::PeerTraffic>& traffic) {
  if (traffic.empty()) return;
  if (!connections) connections.emplace();
  connections->least_rtt_us = std::ranges::min(traffic, {}, &link::PeerTraffic::rtt_us).rtt_us;
  for (const link::PeerTraffic& peer : traffic) {
    connections->resent_packets += peer.resent;
    if (peer.is_server) continue;  // its bytes and time are those of its results
    connections->sent_bytes += peer.sent_bytes;
    connections->unacknowledged_us += peer.busy_us;
  }
}

void LinkCounters::add(const CodecLoss& loss) {
  constexpr double kKept = 0.9;
  if (loss.given <= 0) return;
  codec_loss.given = codec_loss.given * kKept + loss.given;
  codec_loss.left_out = codec_loss.left_out * kKept + loss.left_out;
}

std::uint64_t LinkQueue::finished_below(std::uint64_t next) const {
  const std::uint64_t waits = waits_from(next);
  return running.empty() ? waits : std::min(waits, running.begin()->first);
}

std::uint64_t LinkQueue::started_below(std::uint64_t next) const {
  const std::uint64_t finished = finished_below(next);
  return open && driver ? std::max(finished, driver->under_way_below(waits_from(next))) : finished;
}

void LinkQueue::finished(SubCommTask launch, std::size_t transferred) {
  if (!launch.replay_buffer) return;
  untold_bytes += transferred;
  const std::uint64_t number = launch.number;
  kept.insert_or_assign(number, std::move(launch));
}

void LinkQueue::release(std::uint64_t below) {
  std::size_t used_bytes = 0;
  for (const auto& [number, launch] : kept) used_bytes += launch.replay_buffer->capacity;
  const auto end = kept.lower_bound(below);
  for (auto it = kept.begin(); it != end; it = kept.erase(it)) {
    auto buffer = std::move(it->second.replay_buffer);
    if (it->second.replay) it->second.replay->replay_buffer.reset();
    // The link's thread may still hold a transfer that it has reported.
    if (buffer.use_count() == 1) spare.give(std::move(buffer));
  }
  spare.trim(used_bytes);
}

Result<void> LinkQueue::replay(std::uint64_t from) {
  release(from);
  std::map<std::uint64_t, SubCommTask> replayed = std::move(running);
  replayed.merge(kept);
  running.clear();
  kept.clear();
  for (auto& [number, launch] : replayed) {
    if (!launch.replay_buffer)
      return fail(ErrorKind::kInternal, "launch " + std::to_string(number) + " was not kept for a replay");
    launch.runs_again = true;
  }
  for (auto& launch : waiting) {
    const std::uint64_t number = launch.number;
    replayed.emplace(number, std::move(launch));
  }
  waiting.clear();
  for (auto& [number, launch] : replayed) waiting.push_back(std::move(launch));
  counters.replayed_parts += static_cast<std::uint64_t>(
      std::count_if(waiting.begin(), waiting.end(), [](const SubCommTask& l) { return l.replay_buffer != nullptr; }));
  return {};
}

}  // namespace deft::daemon
