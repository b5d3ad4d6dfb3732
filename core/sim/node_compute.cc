#include "core/sim/node_compute.h"

#include <algorithm>

namespace deft::sim {

NodeCompute::NodeCompute(const model::Profile& profile, const NodeSpeed& node, std::uint64_t seed)
    : profile_(profile), node_(node), random_(seed), gradients_(profile.buckets.size()) {}

double NodeCompute::start(double now_us) {
  const auto& bucket = profile_.buckets[bucket_];
  duration_us_ = (stage_ == sched::Stage::kForward ? bucket.forward_us : bucket.backward_us) * node_.slowdown;
  if (!node_.factors.empty()) duration_us_ *= node_.factors[step_ % node_.factors.size()];
  if (node_.jitter > 0) {
    // Work is never faster than a tenth of its mean.
    std::normal_distribution<double> factor(1, node_.jitter);
    duration_us_ *= std::max(0.1, factor(random_));
  }
  running_ = true;
  started_us_ = now_us;
  return now_us + duration_us_;
}

void NodeCompute::finish() {
  running_ = false;
  computed_us_ += duration_us_;
  if (stage_ == sched::Stage::kForward) {
    if (bucket_ + 1 < gradients_.size()) {
      ++bucket_;
    } else {
      stage_ = sched::Stage::kBackward;
    }
    return;
  }
  gradients_[bucket_] = step_ + 1;
  if (bucket_ > 0) {
    --bucket_;
  } else {
    stage_ = sched::Stage::kForward;
    ++step_;
  }
}

}  // namespace deft::sim
