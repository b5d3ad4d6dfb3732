#include "core/model/calendar.h"

#include <algorithm>
#include <limits>

namespace deft::model {

std::uint64_t Calendar::end_of(std::size_t stretch) const {
  return stretch + 1 < stretches_.size() ? stretches_[stretch + 1].first_step
                                         : std::numeric_limits<std::uint64_t>::max();
}

Dated Calendar::dated(std::size_t stretch, std::uint64_t index) const {
  const Stretch& s = stretches_[stretch];
  const std::uint64_t count = s.cycle->generations.size();
  const PlanGeneration& planned = s.cycle->generations[index % count];
  const std::uint64_t begin = s.first_step + index / count * s.cycle->period_steps;
  const std::uint64_t end = end_of(stretch);
  return {s.first_generation + index, begin + planned.first_step, std::min(begin + planned.last_step, end - 1),
          std::min(begin + planned.apply_step, end), s.first_step};
}

std::size_t Calendar::stretch_of_step(std::uint64_t step) const {
  const auto after = std::upper_bound(stretches_.begin(), stretches_.end(), step,
                                      [](std::uint64_t at, const Stretch& s) { return at < s.first_step; });
  return after == stretches_.begin() ? 0 : static_cast<std::size_t>(after - stretches_.begin()) - 1;
}

Dated Calendar::of_step(std::uint64_t step) const {
  const std::size_t at = stretch_of_step(step);
  const Stretch& s = stretches_[at];
  const std::uint64_t since = step - std::min(step, s.first_step);
  const auto in_cycle = static_cast<std::uint32_t>(since % s.cycle->period_steps);
  std::uint64_t index = since / s.cycle->period_steps * s.cycle->generations.size();
  while (s.cycle->generations[index % s.cycle->generations.size()].last_step < in_cycle) ++index;
  return dated(at, index);
}

Dated Calendar::at(std::uint64_t generation) const {
  std::size_t stretch = stretches_.size() - 1;
  while (stretch > 0 && stretches_[stretch].first_generation > generation) --stretch;
  const std::uint64_t first = stretches_[stretch].first_generation;
  return dated(stretch, generation - std::min(generation, first));
}

void Calendar::number_from(std::size_t stretch) {
  for (std::size_t i = std::max<std::size_t>(stretch, 1); i < stretches_.size(); ++i)
    stretches_[i].first_generation = of_step(stretches_[i].first_step - 1).generation + 1;
  if (stretches_.size() > kRemembered) stretches_.erase(stretches_.begin());
}

void Calendar::follow(std::uint64_t step, std::shared_ptr<const UpdateCycle> cycle) {
  cut(step);
  stretches_[stretch_of_step(step)].cycle = std::move(cycle);
  number_from(stretch_of_step(step) + 1);
}

void Calendar::cut(std::uint64_t step) {
  const std::size_t at = stretch_of_step(step);
  if (stretches_[at].first_step >= step) return;  // it begins there already
  stretches_.insert(stretches_.begin() + static_cast<std::ptrdiff_t>(at) + 1, {step, 0, stretches_[at].cycle});
  number_from(at + 1);
}

void follow(std::span<Calendar> calendars, std::uint64_t step, const UpdateCycles& cycles) {
  const auto usual = std::make_shared<const UpdateCycle>(cycles.usual);
  for (std::size_t b = 0; b < calendars.size(); ++b) {
    const auto own = cycles.own.find(static_cast<BucketIndex>(b));
    calendars[b].follow(step, own == cycles.own.end() ? usual : std::make_shared<const UpdateCycle>(own->second));
  }
}

void cut(std::span<Calendar> calendars, std::uint64_t step) {
  for (Calendar& calendar : calendars) calendar.cut(step);
}

}  // namespace deft::model
