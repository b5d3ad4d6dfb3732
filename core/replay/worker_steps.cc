#include "core/replay/worker_steps.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/model/events.h"
#include "core/replay/launches.h"

namespace deft::replay {
namespace {

using trace::TraceGroup;
using trace::TraceKind;

constexpr std::size_t kWarmupSteps = 2;
constexpr double kLeastWaits = 0.001;  // of all time: a worker that tells of less has told of nothing

// The whole steps of one worker, without the first ones.
class StepReader {
 public:
  StepReader(const trace::NodeTrace& trace, const TraceGroup& group, std::uint32_t worker);

  [[nodiscard]] std::vector<WorkerStep> steps() const {
    if (steps_.size() <= kWarmupSteps) return {};
    return {steps_.begin() + kWarmupSteps, steps_.end()};
  }

 private:
  void stage_began(TimeUs at_us, const trace::StageTrace& stage);
  void handed_in(TimeUs at_us, const trace::GradientTrace& gradient);
  void take_ended();

  const TraceGroup& group_;
  std::vector<std::vector<std::uint32_t>> buckets_of_;  // [tensor]
  std::vector<WorkerStep> steps_;
  std::optional<WorkerStep> ended_;  // the step before open_, of which gradients may still come
  std::optional<WorkerStep> open_;
  TimeUs forward_began_us_ = 0;
};

StepReader::StepReader(const trace::NodeTrace& trace, const TraceGroup& group, std::uint32_t worker)
    : group_(group), buckets_of_(buckets_by_tensor(group)) {
  for (const auto& record : trace.records) {
    if (record.kind() == TraceKind::kStage) {
      const auto stage = record.as<trace::StageTrace>();
      if (stage.worker == worker) stage_began(record.begin_us(), stage);
    } else if (record.kind() == TraceKind::kGradient) {
      const auto gradient = record.as<trace::GradientTrace>();
      if (gradient.worker == worker && gradient.group == group.group) handed_in(record.begin_us(), gradient);
    }
  }
  take_ended();
}

void StepReader::stage_began(TimeUs at_us, const trace::StageTrace& stage) {
  const auto waited_us = static_cast<double>(stage.waited_us);
  if (stage.stage == static_cast<std::uint32_t>(model::Stage::kBackward)) {
    if (!open_) return;
    open_->backward_began_us = at_us;
    open_->forward_us = static_cast<double>(at_us - forward_began_us_) - waited_us;
    open_->waited_us += waited_us;
    open_->waited_in_forward_us = waited_us;
    return;
  }
  take_ended();
  if (open_ && open_->backward_began_us > 0) {
    open_->whole_us = static_cast<double>(at_us - forward_began_us_);
    open_->waited_us += waited_us;
    open_->ended_us = at_us;
    ended_ = std::move(open_);
  }
  open_.emplace().ready_us.resize(group_.buckets.size());
  open_->number = stage.step;
  forward_began_us_ = at_us;
}

void StepReader::take_ended() {
  auto step = std::exchange(ended_, std::nullopt);
  if (!step || step->compute_us() <= 0) return;
  const TimeUs last_us = std::max(step->backward_began_us, std::ranges::max(step->ready_us));
  step->rest_us = static_cast<double>(step->ended_us - last_us) - (step->waited_us - step->waited_in_forward_us);
  if (step->is_of_host) step->rest_us = std::max(0.0, step->rest_us);
  steps_.push_back(*std::move(step));
}

// A GPU's gradients may come when the host has begun the next forward.
void StepReader::handed_in(TimeUs at_us, const trace::GradientTrace& gradient) {
  const bool is_late = ended_ && gradient.last_step == ended_->number;
  std::optional<WorkerStep>& step = is_late ? ended_ : open_;
  if (!step) return;
  if (is_late) step->is_of_host = true;
  const std::size_t end =
      std::min<std::size_t>(buckets_of_.size(), std::size_t{gradient.first_tensor} + gradient.tensors);
  for (std::size_t tensor = gradient.first_tensor; tensor < end; ++tensor)
    for (const auto bucket : buckets_of_[tensor]) step->ready_us[bucket] = at_us;
}

std::vector<TimeUs> ends_of_transfers(const trace::NodeTrace& trace) {
  std::vector<TimeUs> ends_us;
  for (const auto& record : trace.records)
    if (record.kind() == TraceKind::kTransfer) ends_us.push_back(record.end_us());
  std::ranges::sort(ends_us);
  return ends_us;
}

// Only then a step's gradients must have travelled before the next forward.
bool is_exact_job(const trace::NodeTrace& trace) {
  const auto given = trace.header.options.find("policy");
  const PolicyTraits* const traits = given == trace.header.options.end() ? nullptr : find_policy(given->second);
  return traits == nullptr || is_exact(*traits);
}

bool tells_waits(const trace::NodeTrace& trace, std::uint32_t worker) {
  return std::ranges::any_of(trace.records, [worker](const trace::TraceRecord& record) {
    if (record.kind() != TraceKind::kStage) return false;
    const auto stage = record.as<trace::StageTrace>();
    return stage.worker == worker && stage.tells_waits != 0;
  });
}

// See WorkerStep.
void add_untold_waits(const trace::NodeTrace& trace, std::uint32_t worker, std::vector<WorkerStep>& steps) {
  if (!is_exact_job(trace) || tells_waits(trace, worker)) return;
  double waited_us = 0, all_us = 0;
  for (const WorkerStep& step : steps) waited_us += step.waited_us, all_us += step.whole_us;
  if (waited_us > kLeastWaits * all_us) return;
  const auto ends_us = ends_of_transfers(trace);
  for (WorkerStep& step : steps) {
    const TimeUs last_us = std::ranges::max(step.ready_us);
    const auto after = std::ranges::upper_bound(ends_us, step.ended_us);
    if (last_us == 0 || after == ends_us.begin()) continue;
    const auto waits_us = static_cast<double>(std::max<TimeUs>(0, *std::prev(after) - last_us));
    step.waited_us += waits_us;
    step.rest_us -= waits_us;
  }
}

}  // namespace

// The group that holds most of the bytes: the others are small models beside it.
const TraceGroup* largest_group(const trace::NodeTrace& trace) {
  const auto bytes = [](const TraceGroup& group) {
    return std::accumulate(group.buckets.begin(), group.buckets.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const TraceGroup::Bucket& bucket) { return sum + bucket.bytes; });
  };
  const auto largest = std::ranges::max_element(trace.groups, {}, bytes);
  return largest == trace.groups.end() || bytes(*largest) == 0 ? nullptr : &*largest;
}

std::vector<std::uint32_t> recorded_workers(const trace::NodeTrace& trace) {
  std::vector<bool> has_records(std::min(trace.header.ranks.size(), kMostWorkers));
  const auto add = [&](std::uint32_t worker) {
    if (worker < has_records.size()) has_records[worker] = true;
  };
  for (const auto& record : trace.records) {
    if (record.kind() == TraceKind::kStage) add(record.as<trace::StageTrace>().worker);
    if (record.kind() == TraceKind::kGradient) add(record.as<trace::GradientTrace>().worker);
    if (record.kind() == TraceKind::kLayer) add(record.as<trace::LayerTrace>().worker);
    if (record.kind() == TraceKind::kMemoryStep) add(record.as<trace::MemoryStepTrace>().worker);
  }
  std::vector<std::uint32_t> workers;
  for (std::uint32_t worker = 0; worker < has_records.size(); ++worker)
    if (has_records[worker]) workers.push_back(worker);
  return workers;
}

std::vector<WorkerStep> steps_of(const trace::NodeTrace& trace, const TraceGroup& group, std::uint32_t worker) {
  auto steps = StepReader(trace, group, worker).steps();
  add_untold_waits(trace, worker, steps);
  return steps;
}

}  // namespace deft::replay
