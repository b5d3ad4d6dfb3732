// Measures the steps of a training from the events that a scheduler receives, and sends it `profile_measured` when it wants a
// profile.
//
//   auto scheduler = measured(std::move(*made), setup);   // use it in place of the scheduler
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/model/profile.h"
#include "core/sched/recent.h"
#include "core/sched/scheduler.h"
#include "core/sched/step_timer.h"

namespace deft::sched {

// Learns the times of a model from the events of a scheduler.
//
//   StepMeter meter(buckets);
//   meter.stage_began(...);  meter.bucket_ready(...);   // pass every event on
//   if (auto profile = meter.profile(links)) ...
//
// Waiting is not compute. Backward is measured for each bucket, but forward only as a whole, so its time is divided in the
// proportion of the backward times. The rest of a step (the optimizer, the next batch) is compute, too. It counts before the
// forward of the first bucket. Of all measured values the lower third counts; for whole steps it is taken over a longer time
// (step_timer.h). If the step time is overestimated, the plan overloads the links, and the step really becomes that long. If
// another worker of the job is slower, all wait for it, so its steps count. Not thread-safe.
class StepMeter {
 public:
  static constexpr std::size_t kComplete = 8;  // complete steps that are kept, and that the first profile needs

  explicit StepMeter(std::vector<model::Bucket> buckets) : buckets_(std::move(buckets)), newest_(buckets_.size()) {}

  // The events of Scheduler. A step in which not every bucket becomes ready, because steps are merged, is skipped.
  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  void slowest_step_measured(double us) { slowest_us_ = us; }

  // The measured profile with `links`. Nothing before kComplete complete steps.
  [[nodiscard]] std::optional<model::Profile> profile(std::span<const model::LinkModel> links) const;

 private:
  struct Step {
    double forward_us;
    std::vector<double> backward_us;  // [bucket]
    double whole_us;                  // the time of both stages
  };
  void close_step();

  std::vector<model::Bucket> buckets_;
  Recent<Step, kComplete> steps_;
  StepTimer whole_;  // measures all steps, also merged ones
  double slowest_us_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> forward_began_;  // empty when all buckets of the step are ready
  std::optional<TimeUs> backward_began_;
  double forward_us_ = 0;
  std::vector<std::optional<TimeUs>> newest_;  // [bucket]: when it became ready in the step under way
  std::size_t missing_ = 0;
};

// Wraps `scheduler`, which was made for `setup`. All events go on to it unchanged. The first profile comes after
// StepMeter::kComplete complete steps.
std::unique_ptr<Scheduler> measured(std::unique_ptr<Scheduler> scheduler, const Setup& setup);

}  // namespace deft::sched
