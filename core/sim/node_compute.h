// The compute of one node: forward from the first bucket to the last, then backward to the first, step after step.
//
//   const double done_us = node.start(now_us);   // begins the current bucket
//   node.finish();                               // at done_us: moves on to the next bucket
//
// Buckets are numbered in forward order; times are virtual microseconds.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/model/profile.h"
#include "core/sched/scheduler.h"
#include "core/sim/simulation.h"

namespace deft::sim {

class NodeCompute {
 public:
  NodeCompute(const model::Profile& profile, const NodeSpeed& node, std::uint64_t seed);

  [[nodiscard]] sched::Stage stage() const { return stage_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint32_t bucket() const { return bucket_; }
  [[nodiscard]] double started_us() const { return started_us_; }
  [[nodiscard]] bool is_running() const { return running_; }
  [[nodiscard]] double computed_us() const { return computed_us_; }  // since the beginning

  // Begins the current bucket, and gives the time when it will be done.
  double start(double now_us);
  // Ends the current bucket, and moves on to the next one, which may belong to the next stage or step.
  void finish();
  // The last step in which backward has produced `bucket`, plus 1.
  [[nodiscard]] std::uint64_t gradients(std::uint32_t bucket) const { return gradients_[bucket]; }

 private:
  const model::Profile& profile_;
  NodeSpeed node_;
  std::mt19937_64 random_;
  sched::Stage stage_ = sched::Stage::kForward;
  std::uint64_t step_ = 0;
  std::uint32_t bucket_ = 0;
  bool running_ = false;
  double started_us_ = 0;
  double duration_us_ = 0;
  double computed_us_ = 0;
  std::vector<std::uint64_t> gradients_;
};

}  // namespace deft::sim
