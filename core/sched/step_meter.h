// Learns a model's times from the events that a scheduler sees, for plans where no profile was given.
//
// What the worker waited for is not compute. Backward is seen bucket by bucket, forward only as a whole: it is shared
// out as backward's time is. What a whole step takes beyond both (the optimizer, the next batch) is compute, too, and
// comes before the first bucket's forward. Of all values the lower third counts, for whole steps that of a longer time
// (step_time.h). A plan for a step that is taken for longer than it is overloads the links and makes it so. Where another
// worker of the job is slower, all wait for it, so its steps count.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/model/profile.h"
#include "core/sched/recent.h"
#include "core/sched/scheduler.h"
#include "core/sched/step_time.h"

namespace deft::sched {

class StepMeter {
 public:
  static constexpr std::size_t kComplete = 8;  // remembered, and before there is a profile

  explicit StepMeter(std::vector<model::Bucket> buckets) : buckets_(std::move(buckets)), newest_(buckets_.size()) {}

  // As Scheduler has them. Steps in which not every bucket becomes ready (merged ones) are passed over.
  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  void slowest_step_measured(double us) { slowest_us_ = us; }

  // The profile of what was seen, on links of these models; nothing before kComplete complete steps.
  [[nodiscard]] std::optional<model::Profile> profile(std::span<const model::LinkModel> links) const;

 private:
  struct Step {
    double forward_us;
    std::vector<double> backward_us;  // of each bucket
    double whole_us;                  // both stages, until it is over
  };
  void close_step();

  std::vector<model::Bucket> buckets_;
  Recent<Step, kComplete> steps_;
  StepTime whole_;  // of all steps, merged ones, too
  double slowest_us_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> forward_began_;  // nothing once all buckets of the step are ready
  std::optional<TimeUs> backward_began_;
  double forward_us_ = 0;
  std::vector<std::optional<TimeUs>> newest_;  // ready times of the step under way
  std::size_t missing_ = 0;
};

}  // namespace deft::sched
