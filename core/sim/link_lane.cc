#include "core/sim/link_lane.h"

#include <algorithm>
#include <utility>

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

LinkLanes::LinkLanes(const model::Profile& profile, double contention, EventQueue& events)
    : profile_(profile), contention_(contention), events_(events), lanes_(profile.links.size()) {}

void LinkLanes::schedule(std::uint32_t link, double now_us) {
  Lane& lane = lanes_[link];
  lane.since_us = now_us;
  events_.add(now_us + lane.left_us * slowness(), Event::Kind::kSendDone, link, ++lane.version);
}

void LinkLanes::change_active(int change, double now_us) {
  const double before = slowness();
  active_ += change;
  if (contention_ == 0) return;
  for (std::uint32_t link = 0; link < lanes_.size(); ++link) {
    Lane& lane = lanes_[link];
    if (!lane.busy) continue;
    lane.left_us = std::max(0.0, lane.left_us - (now_us - lane.since_us) / before);
    schedule(link, now_us);
  }
}

void LinkLanes::start_ready(std::uint32_t link, double now_us, const MayStart& may_start) {
  Lane& lane = lanes_[link];
  if (lane.busy || lane.queue.empty() || !may_start(lane.queue.front())) return;
  const sched::Launch& launch = lane.queue.front().launch;
  change_active(1, now_us);
  lane.busy = true;
  lane.started_us = now_us;
  lane.left_us = 0;
  for_each_piece(profile_, launch, [&](const model::BucketPiece&, double us) { lane.left_us += us; });
  schedule(link, now_us);
}

void LinkLanes::start_ready(double now_us, const MayStart& may_start) {
  for (std::uint32_t link = 0; link < lanes_.size(); ++link) start_ready(link, now_us, may_start);
}

std::optional<sched::Launch> LinkLanes::finish(const Event& event) {
  Lane& lane = lanes_[event.lane];
  if (!lane.busy || event.version != lane.version) return std::nullopt;
  const sched::Launch launch = lane.queue.front().launch;
  lane.queue.pop_front();
  lane.busy = false;
  change_active(-1, event.at_us);
  return launch;
}

}  // namespace deft::sim
