#include "core/sim/steady_state.h"

#include <algorithm>

#include "core/base/mix64.h"

namespace deft::sim {

void SteadyState::step_began(std::uint64_t step, double now_us, double computed_us, const Sent& sent) {
  if (step >= steps_.size()) return;
  steps_[step].began_us = now_us;
  steps_[step].computed_us = computed_us;
  steps_[step].sent = sent;
}

void SteadyState::decided(const sched::Update& update) {
  if (update.apply_step >= steps_.size()) return;
  Step& step = steps_[update.apply_step];
  const std::uint64_t staleness = update.apply_step - update.last_step - 1;
  const std::uint64_t merged = update.last_step - update.first_step + 1;
  ++step.updates;
  step.staleness = std::max(step.staleness, staleness);
  step.merged = std::max(step.merged, merged);
  // A sum, so that the order in which updates were decided does not matter.
  step.pattern += mix64(update.bucket * 0x9E3779B97F4A7C15U + staleness * 0x10001 + mix64(merged));
}

std::uint64_t SteadyState::period(std::uint64_t first, std::uint64_t end) const {
  for (std::uint64_t period = 1; period <= (end - first) / 2; ++period) {
    const auto begin = steps_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto stop = steps_.begin() + static_cast<std::ptrdiff_t>(end - period);
    if (std::equal(begin, stop, begin + static_cast<std::ptrdiff_t>(period),
                   [](const Step& a, const Step& b) { return a.pattern == b.pattern; }))
      return period;
  }
  return 0;
}

void SteadyState::measure(std::uint64_t warmup, std::size_t buckets, Outcome& outcome) const {
  const std::uint64_t end = steps_.size() - 1;  // the step that begins when all are done
  outcome.period_steps = period(warmup, end);
  const std::uint64_t whole =
      outcome.period_steps ? (end - warmup) / outcome.period_steps * outcome.period_steps : end - warmup;
  const std::uint64_t first = end - whole;
  const auto count = static_cast<double>(whole);
  std::uint64_t updates = 0;
  for (std::uint64_t step = first; step < end; ++step) {
    updates += steps_[step].updates;
    outcome.max_staleness_steps = std::max(outcome.max_staleness_steps, steps_[step].staleness);
    outcome.max_merged_steps = std::max(outcome.max_merged_steps, steps_[step].merged);
  }
  outcome.step_us = (steps_[end].began_us - steps_[first].began_us) / count;
  outcome.compute_us = (steps_[end].computed_us - steps_[first].computed_us) / count;
  outcome.bubble_us = std::max(0.0, outcome.step_us - outcome.compute_us);
  outcome.updates_per_step = static_cast<double>(updates) / count / static_cast<double>(buckets);
  const Sent &before = steps_[first].sent, &after = steps_[end].sent;
  outcome.bytes_per_step = static_cast<double>(after.gradient_bytes - before.gradient_bytes) / count;
  outcome.wire_bytes_per_step = (after.wire_bytes - before.wire_bytes) / count;
  outcome.launches_per_step = static_cast<double>(after.launches - before.launches) / count;
}

}  // namespace deft::sim
