// Learns a model's times from the events that a scheduler sees, for plans where no profile was given.
//
// What the worker waited for is not compute. Backward is seen bucket by bucket, forward only as a whole: it is shared
// out as backward's time is. What a whole step takes beyond both (the optimizer, the next batch) is compute, too, and
// comes before the first bucket's forward. Anything may be disturbed now and then, be it by a minute's pause or by a
// neighbour that takes a third of the core for ten steps, and that only adds: so the lower third counts, for whole steps
// that of a longer time. A plan for a step that is taken for longer than it is overloads the links and makes it so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/model/profile.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class StepMeter {
 public:
  static constexpr std::size_t kComplete = 8;  // remembered, and before there is a profile
  static constexpr std::size_t kWhole = 32;    // remembered; a shorter step shows after a third of them

  explicit StepMeter(std::vector<model::Bucket> buckets) : buckets_(std::move(buckets)), newest_(buckets_.size()) {}

  // As Scheduler has them. Steps in which not every bucket becomes ready (merged ones) are passed over.
  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  // The profile of what was seen, on links of these models; nothing before kComplete complete steps.
  [[nodiscard]] std::optional<model::Profile> profile(std::span<const model::LinkModel> links) const;

 private:
  struct Step {
    double forward_us;
    std::vector<double> backward_us;  // of each bucket
    double whole_us;                  // both stages, until it is over
  };
  void close_step();
  void end_step(double whole_us);

  std::vector<model::Bucket> buckets_;
  std::vector<Step> steps_;       // a ring of kComplete
  std::vector<double> whole_us_;  // a ring of kWhole, from forward to forward; merged ones, too
  std::size_t closed_ = 0, ended_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> forward_began_;  // nothing once all buckets of the step are ready
  std::optional<TimeUs> backward_began_;
  std::optional<TimeUs> step_began_;
  TimeUs waited_us_ = 0;  // in the step under way
  double forward_us_ = 0;
  std::vector<std::optional<TimeUs>> newest_;  // ready times of the step under way
  std::size_t missing_ = 0;
};

}  // namespace deft::sched
