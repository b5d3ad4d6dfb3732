// The planner's problem: the times of the buckets and links, in the numbering of the scheduler.
//
//   Problem problem(profile);       // bucket 0 is the first that backward produces
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/profile.h"

namespace deft::plan {

struct ProblemBucket {
  std::uint64_t bytes = 0;
  double forward_us = 0;
  double backward_us = 0;
  double forward_start_us = 0;  // from the beginning of a step that never waits
  double ready_us = 0;          // the same, for the end of its backward
};

class Problem {
 public:
  explicit Problem(const model::Profile& profile);

  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  [[nodiscard]] std::size_t links() const { return costs_.size(); }
  [[nodiscard]] const ProblemBucket& bucket(std::size_t index) const { return buckets_[index]; }
  [[nodiscard]] const model::PartCost& cost(std::size_t link, std::size_t bucket) const { return costs_[link][bucket]; }
  [[nodiscard]] std::vector<std::uint64_t> bucket_bytes() const {
    std::vector<std::uint64_t> bytes;
    for (const auto& bucket : buckets_) bytes.push_back(bucket.bytes);
    return bytes;
  }
  [[nodiscard]] double compute_us() const { return compute_us_; }
  [[nodiscard]] double forward_us() const { return forward_us_; }

  // The same problem with compute times and part costs scaled: the planner plans with slack for jitter, and for the
  // steps that are longer than compute where more updates are worth it.
  [[nodiscard]] Problem scaled(double compute, double communication) const;

  // A time that one generation needs at least of all links working at once, whatever the schedule: the linear program
  // over fractions of buckets, from below. The links' limit is min(1, compute_us / this) updates a step.
  [[nodiscard]] double generation_bound_us() const;

 private:
  std::vector<ProblemBucket> buckets_;
  std::vector<std::vector<model::PartCost>> costs_;  // [link][bucket]
  double compute_us_ = 0;
  double forward_us_ = 0;
};

// The compute lane: one step after the other, forward waiting for the updates that it must see.
class ComputeTimeline {
 public:
  explicit ComputeTimeline(const Problem& problem) : problem_(problem) {}

  // Runs the next step. `arrival_us[b]`: when the update of bucket b is there that this step's forward must see; null:
  // none is due. Writes when the gradients are ready to `ready_us`.
  void run_step(const double* arrival_us, double* ready_us);
  [[nodiscard]] double now_us() const { return now_us_; }

 private:
  const Problem& problem_;
  double now_us_ = 0;
};

}  // namespace deft::plan
