#include "core/sim/link_channels.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/model/buckets.h"
#include "core/sim/launch_buckets.h"

namespace deft::sim {

LinkChannels::LinkChannels(const model::Profile& profile, double contention,
                           const std::vector<model::LinkIndex>& priority_links, EventQueue& events)
    : profile_(profile), contention_(contention), events_(events), channels_(2 * profile.links.size()) {
  for (std::uint32_t link = 0; link < links(); ++link)
    channels_[links() + link].exists = std::ranges::find(priority_links, link) != priority_links.end();
  for (const model::ProfileLink& link : profile.links)
    tokens_.emplace_back(link.bytes_per_us ? link.burst_bytes / *link.bytes_per_us : 0);
}

std::uint32_t LinkChannels::channel_of(const sched::Launch& launch) const {
  const std::uint32_t priority = links() + launch.link;
  if (!channels_[priority].exists || launch.half == sched::AllReduceHalf::kAllGather) return launch.link;
  return model::is_small(static_cast<std::uint64_t>(std::llround(wire_bytes(launch)))) ? priority : launch.link;
}

void LinkChannels::schedule(std::uint32_t channel, double now_us) {
  channels_[channel].since_us = now_us;
  events_.add(now_us + channels_[channel].left_us * slowness(), QueuedEvent::Kind::kSendDone, channel,
              ++channels_[channel].version);
}

void LinkChannels::retime(std::uint32_t channel, double now_us, double slowness, double more_us) {
  Channel& timed = channels_[channel];
  if (!timed.busy) return;
  timed.left_us = std::max(0.0, timed.left_us - (now_us - timed.since_us) / slowness) + more_us;
  schedule(channel, now_us);
}

void LinkChannels::change_active(int change, double now_us) {
  const double before = slowness();
  active_ += change;
  if (contention_ == 0) return;
  for (std::uint32_t channel = 0; channel < channels_.size(); ++channel) retime(channel, now_us, before);
}

double LinkChannels::wire_bytes(const sched::Launch& launch) const {
  double bytes = 0;
  for_each_bucket(profile_, launch, [&](const model::BucketPiece& piece) {
    const auto share = profile_.buckets[piece.bucket].coded_share();
    bytes += profile_.codecs[launch.codec].bytes_share(share, launch.link) * static_cast<double>(piece.bytes);
    return true;
  });
  return bytes;
}

double LinkChannels::bytes_us(const sched::Launch& launch) const {
  double sum_us = 0;
  for_each_bucket(profile_, launch, [&](const model::BucketPiece& piece) {
    sum_us += static_cast<double>(piece.bytes) * profile_.cost(piece.bucket, launch.link, launch.codec).us_per_byte;
    return true;
  });
  return launch.half == sched::AllReduceHalf::kBoth ? sum_us : sum_us / 2;
}

// A launch on the priority channel takes its bytes' time from the launch on the other channel.
void LinkChannels::begin(std::uint32_t channel, double now_us) {
  Channel& begun = channels_[channel];
  const sched::Launch& launch = begun.queue.front().launch;
  if (!is_busy(launch.link)) tokens_[launch.link].busy(now_us);
  begun.busy = true;
  begun.started_us = now_us;
  begun.left_us = 0;
  for_each_timed_bucket(profile_, launch, [&](const model::BucketPiece&, double us) { begun.left_us += us; });
  const double all_us = bytes_us(launch), saved_us = tokens_[launch.link].take(all_us);
  begun.left_us -= saved_us;
  schedule(channel, now_us);
  if (is_priority(channel)) retime(launch.link, now_us, slowness(), all_us - saved_us);
}

void LinkChannels::start_ready(std::uint32_t channel, double now_us, const MayStart& may_start) {
  const Channel& idle = channels_[channel];
  if (idle.busy || idle.queue.empty() || !may_start(idle.queue.front())) return;
  if (!is_priority(channel)) change_active(1, now_us);
  begin(channel, now_us);
}

void LinkChannels::start_ready(double now_us, const MayStart& may_start) {
  for (std::uint32_t channel = 0; channel < channels_.size(); ++channel) start_ready(channel, now_us, may_start);
}

std::optional<sched::Launch> LinkChannels::finish(const QueuedEvent& event) {
  Channel& channel = channels_[event.of];
  if (!channel.busy || event.version != channel.version) return std::nullopt;
  const sched::Launch launch = channel.queue.front().launch;
  channel.queue.pop_front();
  channel.busy = false;
  ++launches_;
  if (!is_busy(launch.link)) tokens_[launch.link].idle(event.at_us);
  sent_bytes_ += sched::link_bytes(launch);
  wire_bytes_ += (launch.half == sched::AllReduceHalf::kBoth ? 1 : 0.5) * wire_bytes(launch);
  if (!is_priority(event.of)) change_active(-1, event.at_us);
  return launch;
}

}  // namespace deft::sim
