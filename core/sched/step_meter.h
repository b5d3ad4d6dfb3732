// Learns a model's times from the events that a scheduler sees, for plans where no profile was given.
//
// Forward may contain waiting for updates, and anything may be disturbed now and then, so the shortest of the last few
// steps counts. What forward takes of each bucket is not seen; it is shared out as backward's time is.
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

  void stage_began(Stage stage, std::uint64_t step, TimeUs now_us);
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us);

  // The profile of what was seen, on links of these models; nothing before kSteps complete steps.
  [[nodiscard]] std::optional<model::Profile> profile(std::span<const model::LinkModel> links) const;

 private:
  struct Step {
    double forward_us;
    std::vector<double> backward_us;  // of each bucket
  };
  void close_step();

  std::vector<model::Bucket> buckets_;
  std::vector<Step> steps_;  // a ring of kSteps
  std::size_t closed_ = 0;
  std::uint64_t step_ = 0;
  std::optional<TimeUs> forward_began_;
  std::optional<TimeUs> backward_began_;
  std::vector<std::optional<TimeUs>> newest_;  // ready times of the step under way
  std::size_t missing_ = 0;
};

}  // namespace deft::sched
