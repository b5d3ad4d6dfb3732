// Learns a model's times from the events that a scheduler sees, for plans where no profile was given.
//
// What the worker waited for is not compute. Backward is seen bucket by bucket, forward only as a whole: it is shared
// out as backward's time is. What lies between backward and the next forward (the optimizer, the next batch) is compute,
// too, and comes before the first bucket's forward. Anything may be disturbed now and then, so medians count.
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
  static constexpr std::size_t kSteps = 8;  // remembered

  explicit StepMeter(std::vector<model::Bucket> buckets) : buckets_(std::move(buckets)), newest_(buckets_.size()) {}

  // As Scheduler has them. Steps in which not every bucket becomes ready (merged ones) are passed over.
  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  // The profile of what was seen, on links of these models; nothing before kSteps complete steps.
  [[nodiscard]] std::optional<model::Profile> profile(std::span<const model::LinkModel> links) const;

 private:
  struct Step {
    double between_us;  // from the end of the backward before to this forward; below 0: unknown
    double forward_us;
    std::vector<double> backward_us;  // of each bucket
  };
  void close_step();
  [[nodiscard]] double median(double (*value)(const Step&, std::size_t), std::size_t index) const;

  std::vector<model::Bucket> buckets_;
  std::vector<Step> steps_;  // a ring of kSteps
  std::size_t closed_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> forward_began_;
  std::optional<TimeUs> backward_began_;
  std::optional<TimeUs> backward_ended_;  // of the step before
  double between_us_ = -1;
  double forward_us_ = 0;
  std::vector<std::optional<TimeUs>> newest_;  // ready times of the step under way
  std::size_t missing_ = 0;
};

}  // namespace deft::sched
