// The buckets of a launch by the profile's numbers, and the time that each of them takes on the launch's link.
//
//   for_each_bucket(profile, launch, [&](const model::BucketPiece& piece) { ...; return true; });
//   for_each_timed_bucket(profile, launch, [&](const model::BucketPiece& piece, double us) { ... });
//
// Schedulers count buckets from the other side than profiles do. Pure.
#pragma once

#include <functional>

#include "core/model/buckets.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"

namespace deft::sim {

// The profile's number of a scheduler's bucket, and the other way round.
inline model::BucketIndex mirrored(const model::Profile& profile, model::BucketIndex bucket) {
  return static_cast<model::BucketIndex>(profile.buckets.size()) - 1 - bucket;
}

// Calls visit(piece) for each bucket of the launch while it gives true. False if it did not, or if the launch goes beyond the last
// bucket.
template <typename Visit>
bool for_each_bucket(const model::Profile& profile, const sched::Launch& launch, const Visit& visit) {
  return model::for_each_piece(
      {launch.bucket, launch.offset, launch.bytes}, profile.buckets.size(),
      [&](model::BucketIndex bucket) { return profile.buckets[mirrored(profile, bucket)].bytes; },
      [&](const model::BucketPiece& piece) {
        return visit(model::BucketPiece{mirrored(profile, piece.bucket), piece.offset, piece.bytes});
      });
}

// Calls visit(piece, us) for each bucket of the launch. `us` is the time for its bytes. A launch over several buckets pays one latency, the
// largest of its buckets, with its first piece. Half an all-reduce takes the whole latency and half the bytes' time. A launch that goes
// beyond the last bucket has no times.
using VisitTimedBucket = std::function<void(const model::BucketPiece& piece, double us)>;
void for_each_timed_bucket(const model::Profile& profile, const sched::Launch& launch, const VisitTimedBucket& visit);

}  // namespace deft::sim
