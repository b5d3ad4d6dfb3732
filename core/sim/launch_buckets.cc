#include "core/sim/launch_buckets.h"

#include <algorithm>
#include <utility>

namespace deft::sim {

void for_each_timed_bucket(const model::Profile& profile, const sched::Launch& launch, const VisitTimedBucket& visit) {
  const double share = launch.half == sched::AllReduceHalf::kBoth ? 1 : 0.5;
  double fixed_us = 0;
  const bool whole = for_each_bucket(profile, launch, [&](const model::BucketPiece& piece) {
    fixed_us = std::max(fixed_us, profile.cost(piece.bucket, launch.link, launch.codec).fixed_us);
    return true;
  });
  if (!whole) return;
  for_each_bucket(profile, launch, [&](const model::BucketPiece& piece) {
    const double us_per_byte = profile.cost(piece.bucket, launch.link, launch.codec).us_per_byte;
    const double us = share * static_cast<double>(piece.bytes) * us_per_byte;
    visit(piece, std::exchange(fixed_us, 0) + us);
    return true;
  });
}

}  // namespace deft::sim
