#include "daemon/node/measurements.h"

#include <algorithm>

namespace deft::daemon {
namespace {

constexpr std::uint64_t kLongestWaitUs = 86'400'000'000;  // a worker that claims to have waited longer is not believed

}  // namespace

void Measurements::stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us) {
  if (began.stage != 1 && began.stage != 2) return;
  const auto stage = static_cast<sched::Stage>(began.stage);
  const auto waited_us = static_cast<TimeUs>(std::min(began.waited_us, kLongestWaitUs));
  waited_us_[worker] += waited_us;
  if (scheduler_ != nullptr && members_.workers()[worker].rank == 0)
    scheduler_->stage_began(stage, began.step, waited_us);
  const bool ended = steps_[worker].stage_began(stage, began.step, now_us, waited_us);
  if (!ended || worker != 0 || steps_[worker].ended() % kStepsTold != 0) return;
  double slowest_us = 0;
  for (const auto& steps : steps_) slowest_us = std::max(slowest_us, steps.usual_us());
  leader_.send(wire::StepTime{slowest_us, codecs_.take()});
}

void Measurements::take(std::size_t worker, const ipc::Statistics& statistics) {
  auto& told = statistics_[statistics.group];
  told.resize(steps_.size());
  told[worker] = statistics;
  wire::GradientStatistics sum;
  for (const auto& one : told) {
    if (!one || one->step != statistics.step) return;
    sum.local_norms += one->local_norm;
    sum.average_norms += one->average_norm;
    sum.loss += one->loss;
    sum.learning_rate = std::max(sum.learning_rate, one->learning_rate);
    sum.target = std::max(sum.target, one->target);
  }
  sum.group = statistics.group;
  sum.step = statistics.step;
  sum.ranks = static_cast<std::uint32_t>(told.size());
  sum.merged_as_sums = statistics.merged_as_sums != 0;
  leader_.send(sum);
}

}  // namespace deft::daemon
