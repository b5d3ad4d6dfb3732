#include "core/model/update_schedule.h"

#include <algorithm>
#include <limits>

namespace deft::model {

std::uint64_t UpdateSchedule::end_of(std::size_t epoch) const {
  return epoch + 1 < epochs_.size() ? epochs_[epoch + 1].first_step : std::numeric_limits<std::uint64_t>::max();
}

UpdateWindow UpdateSchedule::dated(std::size_t epoch, std::uint64_t index) const {
  const ScheduleEpoch& s = epochs_[epoch];
  const std::uint64_t count = s.cycle->generations.size();
  const PlanGeneration& planned = s.cycle->generations[index % count];
  const std::uint64_t begin = s.first_step + index / count * s.cycle->period_steps;
  const std::uint64_t end = end_of(epoch);
  return {s.first_generation + index, begin + planned.first_step, std::min(begin + planned.last_step, end - 1),
          std::min(begin + planned.apply_step, end), s.first_step};
}

std::size_t UpdateSchedule::epoch_of_step(std::uint64_t step) const {
  const auto after = std::upper_bound(epochs_.begin(), epochs_.end(), step,
                                      [](std::uint64_t at, const ScheduleEpoch& s) { return at < s.first_step; });
  return after == epochs_.begin() ? 0 : static_cast<std::size_t>(after - epochs_.begin()) - 1;
}

UpdateWindow UpdateSchedule::of_step(std::uint64_t step) const {
  const std::size_t at = epoch_of_step(step);
  const ScheduleEpoch& s = epochs_[at];
  const std::uint64_t since = step - std::min(step, s.first_step);
  const auto in_cycle = static_cast<std::uint32_t>(since % s.cycle->period_steps);
  std::uint64_t index = since / s.cycle->period_steps * s.cycle->generations.size();
  while (s.cycle->generations[index % s.cycle->generations.size()].last_step < in_cycle) ++index;
  return dated(at, index);
}

UpdateWindow UpdateSchedule::at(std::uint64_t generation) const {
  std::size_t epoch = epochs_.size() - 1;
  while (epoch > 0 && epochs_[epoch].first_generation > generation) --epoch;
  const std::uint64_t first = epochs_[epoch].first_generation;
  return dated(epoch, generation - std::min(generation, first));
}

void UpdateSchedule::number_from(std::size_t epoch) {
  for (std::size_t i = std::max<std::size_t>(epoch, 1); i < epochs_.size(); ++i)
    epochs_[i].first_generation = of_step(epochs_[i].first_step - 1).generation + 1;
  if (epochs_.size() > kRemembered) epochs_.erase(epochs_.begin());
}

void UpdateSchedule::follow(std::uint64_t step, const std::shared_ptr<const UpdateCycle>& cycle) {
  cut(step);
  const std::size_t first = epoch_of_step(step);
  const auto before = epochs_[first].cycle;
  // Cuts behind `step` that were known before go on with the new cycle.
  for (std::size_t at = first; at < epochs_.size() && epochs_[at].cycle == before; ++at) epochs_[at].cycle = cycle;
  number_from(first + 1);
}

void UpdateSchedule::cut(std::uint64_t step) {
  const std::size_t at = epoch_of_step(step);
  if (epochs_[at].first_step >= step) return;  // it begins there already
  epochs_.insert(epochs_.begin() + static_cast<std::ptrdiff_t>(at) + 1, {step, 0, epochs_[at].cycle});
  number_from(at + 1);
}

void follow(std::span<UpdateSchedule> schedules, std::uint64_t step, const UpdateCycles& cycles) {
  const auto usual = std::make_shared<const UpdateCycle>(cycles.usual);
  for (std::size_t b = 0; b < schedules.size(); ++b) {
    const auto own = cycles.own.find(static_cast<BucketIndex>(b));
    schedules[b].follow(step, own == cycles.own.end() ? usual : std::make_shared<const UpdateCycle>(own->second));
  }
}

void cut(std::span<UpdateSchedule> schedules, std::uint64_t step) {
  for (UpdateSchedule& schedule : schedules) schedule.cut(step);
}

}  // namespace deft::model
