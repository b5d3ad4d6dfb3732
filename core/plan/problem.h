// The planner's problem: the times of the buckets and links in microseconds, numbered as the scheduler numbers them.
//
//   Problem problem(profile);       // bucket 0 is the bucket that backward produces first
//   ComputeTimeline compute(problem);
//   compute.run_step(arrival_us, ready_us);
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/profile.h"

namespace deft::plan {

// The times of one bucket.
struct ProblemBucket {
  std::uint64_t bytes = 0;
  double forward_us = 0;
  double backward_us = 0;
  double forward_start_us = 0;  // when its forward begins, counted from the beginning of a step that never waits
  double ready_us = 0;          // when its backward ends, counted from the same moment
};

class Problem {
 public:
  // `codecs`: of each bucket; empty: all are exact.
  explicit Problem(const model::Profile& profile, const std::vector<model::CodecIndex>& codecs = {});

  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  [[nodiscard]] std::size_t links() const { return costs_.size(); }
  [[nodiscard]] const ProblemBucket& bucket(std::size_t index) const { return buckets_[index]; }
  [[nodiscard]] const model::PartCost& cost(std::size_t link, std::size_t bucket) const { return costs_[link][bucket]; }
  // The time of a bucket if all links share it.
  [[nodiscard]] double shared_us(std::size_t bucket) const;
  // The cost of the link for bytes as they are on the wire.
  [[nodiscard]] const model::LinkModel& link_model(std::size_t link) const { return links_[link]; }
  [[nodiscard]] std::vector<std::uint64_t> bucket_bytes() const {
    std::vector<std::uint64_t> bytes;
    for (const auto& bucket : buckets_) bytes.push_back(bucket.bytes);
    return bytes;
  }
  [[nodiscard]] double compute_us() const { return compute_us_; }
  [[nodiscard]] double forward_us() const { return forward_us_; }

  // The same problem with compute times multiplied by `compute` and part costs by `communication`. The planner scales to keep
  // slack for jitter, and to try steps that are longer than compute if they allow more updates.
  [[nodiscard]] Problem scaled(double compute, double communication) const;

  // The same problem with neighbours as one bucket, which costs as much as they do. `firsts`: the first bucket of each group; 0 is one.
  [[nodiscard]] Problem merged(const std::vector<std::size_t>& firsts) const;

  // A lower bound of the time that all links together need for one generation, whatever the schedule: the linear program
  // over fractions of buckets, from below. The links can carry at most min(1, compute_us / this) updates a step.
  [[nodiscard]] double generation_bound_us() const;

 private:
  std::vector<ProblemBucket> buckets_;
  std::vector<std::vector<model::PartCost>> costs_;  // [link][bucket]
  std::vector<model::LinkModel> links_;
  double compute_us_ = 0;
  double forward_us_ = 0;
};

// The compute of a worker: one step after the other. Forward waits for the updates that it must see.
class ComputeTimeline {
 public:
  explicit ComputeTimeline(const Problem& problem) : problem_(problem) {}  // `problem` outlives this object

  // Runs the next step. `arrival_us[b]` is the time when the update of bucket b arrives that this step's forward must see;
  // nullptr: no update is due. Writes to `ready_us[b]` when the gradients of bucket b are ready.
  void run_step(const double* arrival_us, double* ready_us);
  [[nodiscard]] double now_us() const { return now_us_; }

 private:
  const Problem& problem_;
  double now_us_ = 0;
};

}  // namespace deft::plan
