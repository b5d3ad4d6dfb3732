#include "core/replay/step_sample.h"

#include <algorithm>

#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

bool is_policy(const TrackSlice& slice) { return slice.category == "policy"; }

// What begins where a step ends is of the next one.
bool overlaps(const StepSpan& step, TimeUs begin_us, TimeUs end_us) {
  return begin_us < step.end_us && (end_us > step.begin_us || begin_us >= step.begin_us);
}

// How many slices the picture of each step has.
std::vector<std::size_t> slices_by_step(const JobTimeline& timeline, const std::vector<StepSpan>& steps) {
  std::vector<std::ptrdiff_t> more(steps.size() + 1);  // than the step before
  for (const TrackSlice& slice : timeline.slices) {
    if (is_policy(slice)) continue;
    const auto first = std::ranges::upper_bound(steps, slice.begin_us, {}, &StepSpan::end_us);
    if (first == steps.end() || !overlaps(*first, slice.begin_us, slice.end_us)) continue;
    const auto behind = std::ranges::lower_bound(first + 1, steps.end(), slice.end_us, {}, &StepSpan::begin_us);
    ++more[static_cast<std::size_t>(first - steps.begin())], --more[static_cast<std::size_t>(behind - steps.begin())];
  }
  std::vector<std::size_t> counts;
  std::ptrdiff_t count = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) counts.push_back(static_cast<std::size_t>(count += more[i]));
  return counts;
}

// The middle step of each of `count` shares of the trace.
std::vector<std::size_t> evenly(std::size_t count, std::size_t all) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < count; ++i) places.push_back((2 * i + 1) * all / (2 * count));
  return places;
}

// As many steps as there is room for, or one.
std::vector<std::size_t> fitting_steps(const std::vector<std::size_t>& slices, std::size_t most) {
  for (std::size_t count = slices.size(); count > 1; count = count * 9 / 10) {
    auto places = evenly(count, slices.size());
    std::size_t sum = 0;
    for (const std::size_t place : places) sum += slices[place];
    if (sum <= most) return places;
  }
  return evenly(1, slices.size());
}

// Marks and details go first, and then the end.
void cut(JobTimeline& timeline, std::size_t most) {
  auto& slices = timeline.slices;
  for (const char* const category : {"gradient", "stage", "policy"}) {
    if (slices.size() <= most) return;
    std::erase_if(slices, [category](const TrackSlice& slice) { return slice.category == category; });
  }
  if (slices.size() <= most) return;
  std::vector<TimeUs> begins;
  for (const auto& slice : slices) begins.push_back(slice.begin_us);
  const auto last = begins.begin() + static_cast<std::ptrdiff_t>(most);
  std::ranges::nth_element(begins, last);
  std::erase_if(slices, [end_us = *last](const TrackSlice& slice) { return slice.begin_us >= end_us; });
}

}  // namespace

std::vector<StepSpan> step_spans(const JobTrace& job) {
  std::vector<StepSpan> spans;
  const auto* const group = job.leader() == nullptr ? nullptr : largest_group(job.leader()->trace);
  if (group == nullptr) return spans;
  const TimeUs origin_us = beginning_of(job);
  for (const WorkerStep& step : steps_of(job.leader()->trace, *group, 0)) {
    const TimeUs end_us = step.ended_us - origin_us;
    spans.push_back({step.number, end_us - static_cast<TimeUs>(step.whole_us), end_us});
  }
  return spans;
}

bool StepSample::shows(TimeUs begin_us, TimeUs end_us) const {
  if (has_all || steps.empty()) return true;
  const auto first = std::ranges::upper_bound(steps, begin_us, {}, &StepSpan::end_us);
  return first != steps.end() && overlaps(*first, begin_us, end_us);
}

StepSample sample_steps(JobTimeline& timeline, const std::vector<StepSpan>& steps, std::size_t most) {
  StepSample sample{.steps_of_trace = steps.size()};
  if (timeline.slices.size() <= most) return sample;
  sample.has_all = false;
  if (!steps.empty()) {
    const auto policies = static_cast<std::size_t>(std::ranges::count_if(timeline.slices, is_policy));
    const auto places = fitting_steps(slices_by_step(timeline, steps), most - std::min(most, policies));
    for (const std::size_t place : places) sample.steps.push_back(steps[place]);
    std::erase_if(timeline.slices, [&](const TrackSlice& slice) {
      return !is_policy(slice) && !sample.shows(slice.begin_us, slice.end_us);
    });
  }
  sample.is_cut = timeline.slices.size() > most;
  if (sample.is_cut) cut(timeline, most);
  return sample;
}

}  // namespace deft::replay
