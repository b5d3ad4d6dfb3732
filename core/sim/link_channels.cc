#include "core/sim/link_channels.h"

#include <algorithm>
#include <utility>

#include "core/model/parts.h"

namespace deft::sim {

bool for_each_piece(const model::Profile& profile, const sched::Launch& launch, const VisitPiece& visit) {
  const std::size_t count = profile.buckets.size();
  const model::BucketPiece run{launch.bucket, launch.offset, launch.bytes};
  const auto mirrored = [count](model::BucketIndex bucket) {
    return static_cast<model::BucketIndex>(count - 1 - bucket);
  };
  const auto bytes_of = [&](model::BucketIndex bucket) { return profile.buckets[mirrored(bucket)].bytes; };
  double fixed_us = 0;
  const bool whole = model::for_each_piece(run, count, bytes_of, [&](const model::BucketPiece& piece) {
    fixed_us = std::max(fixed_us, profile.cost(mirrored(piece.bucket), launch.link).fixed_us);
    return true;
  });
  return whole && model::for_each_piece(run, count, bytes_of, [&](const model::BucketPiece& piece) {
           const auto bucket = mirrored(piece.bucket);
           const double us = static_cast<double>(piece.bytes) * profile.cost(bucket, launch.link).us_per_byte;
           visit({bucket, piece.offset, piece.bytes}, std::exchange(fixed_us, 0) + us);
           return true;
         });
}

LinkChannels::LinkChannels(const model::Profile& profile, double contention,
                           const std::vector<model::LinkIndex>& express, EventQueue& events)
    : profile_(profile), contention_(contention), events_(events), lanes_(2 * profile.links.size()) {
  for (std::uint32_t link = 0; link < links(); ++link)
    lanes_[links() + link].exists = std::ranges::find(express, link) != express.end();
}

std::uint32_t LinkChannels::lane_of(const sched::Launch& launch) const {
  const std::uint32_t express = links() + launch.link;
  return lanes_[express].exists && model::is_small(launch.bytes) ? express : launch.link;
}

void LinkChannels::schedule(std::uint32_t lane, double now_us) {
  lanes_[lane].since_us = now_us;
  events_.add(now_us + lanes_[lane].left_us * slowness(), Event::Kind::kSendDone, lane, ++lanes_[lane].version);
}

void LinkChannels::time_anew(std::uint32_t lane, double now_us, double slowness, double more_us) {
  Lane& timed = lanes_[lane];
  if (!timed.busy) return;
  timed.left_us = std::max(0.0, timed.left_us - (now_us - timed.since_us) / slowness) + more_us;
  schedule(lane, now_us);
}

void LinkChannels::change_active(int change, double now_us) {
  const double before = slowness();
  active_ += change;
  if (contention_ == 0) return;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) time_anew(lane, now_us, before);
}

double LinkChannels::bytes_us(const sched::Launch& launch) const {
  double sum_us = 0;
  for_each_piece(profile_, launch, [&](const model::BucketPiece& piece, double) {
    sum_us += static_cast<double>(piece.bytes) * profile_.cost(piece.bucket, launch.link).us_per_byte;
  });
  return sum_us;
}

// What passes on the express way takes its bytes' time from what is on its way.
void LinkChannels::begin(std::uint32_t lane, double now_us) {
  Lane& begun = lanes_[lane];
  const sched::Launch& launch = begun.queue.front().launch;
  begun.busy = true;
  begun.started_us = now_us;
  begun.left_us = 0;
  for_each_piece(profile_, launch, [&](const model::BucketPiece&, double us) { begun.left_us += us; });
  schedule(lane, now_us);
  if (is_express(lane)) time_anew(launch.link, now_us, slowness(), bytes_us(launch));
}

void LinkChannels::start_ready(std::uint32_t lane, double now_us, const MayStart& may_start) {
  const Lane& idle = lanes_[lane];
  if (idle.busy || idle.queue.empty() || !may_start(idle.queue.front())) return;
  if (!is_express(lane)) change_active(1, now_us);
  begin(lane, now_us);
}

void LinkChannels::start_ready(double now_us, const MayStart& may_start) {
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) start_ready(lane, now_us, may_start);
}

std::optional<sched::Launch> LinkChannels::finish(const Event& event) {
  Lane& lane = lanes_[event.lane];
  if (!lane.busy || event.version != lane.version) return std::nullopt;
  const sched::Launch launch = lane.queue.front().launch;
  lane.queue.pop_front();
  lane.busy = false;
  if (!is_express(event.lane)) change_active(-1, event.at_us);
  return launch;
}

}  // namespace deft::sim
