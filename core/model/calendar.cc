#include "core/model/calendar.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace deft::model {
namespace {

tl::unexpected<Error> at(const std::string& place, const std::string& what) {
  return fail(ErrorKind::kInvalid, "plan." + place + ": " + what);
}

Result<void> check_generation(const PlanGeneration& generation, std::uint64_t next_step, const std::string& place) {
  if (generation.first_step != next_step)
    return at(place + ".first_step",
              std::to_string(generation.first_step) + ", the next step to merge is " + std::to_string(next_step));
  if (generation.last_step < generation.first_step) return at(place + ".last_step", "before its first step");
  if (generation.apply_step <= generation.last_step) return at(place + ".apply_step", "before its last step has run");
  if (generation.staleness() > kMaxPlanSteps)
    return at(place + ".apply_step", std::to_string(generation.apply_step) + " is absurdly large");
  return {};
}

constexpr std::uint32_t kMaxSteps = 1 << 20;  // of a cycle that a user writes

// A number from the front of `text`, which it is taken off.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || value > kMaxSteps) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<PlanGeneration> parse_generation(std::string_view text) {
  const auto first = take_number(text);
  if (!first) return std::nullopt;
  const auto last = take(text, '-') ? take_number(text) : first;
  if (!last || !take(text, '@')) return std::nullopt;
  const auto apply = take_number(text);
  if (!apply || !text.empty()) return std::nullopt;
  return PlanGeneration{*first, *last, *apply};
}

}  // namespace

Result<UpdateCycle> parse_cycle(std::string_view text) {
  UpdateCycle cycle{0, {}};
  const std::string whole(text);
  while (true) {
    const auto comma = text.find(',');
    const auto generation = parse_generation(text.substr(0, comma));
    if (!generation)
      return fail(ErrorKind::kInvalid,
                  "'" + std::string(text.substr(0, comma)) + "' in '" + whole + "' is no generation",
                  "write first-last@apply, for instance 0-1@4,2@5");
    cycle.generations.push_back(*generation);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  cycle.period_steps = cycle.generations.back().last_step + 1;
  if (auto ok = check_cycle(cycle); !ok) return tl::unexpected(ok.error().in("'" + whole + "'"));
  return cycle;
}

std::string to_text(const UpdateCycle& cycle) {
  std::string text;
  for (const auto& generation : cycle.generations) {
    text += (text.empty() ? "" : ",") + std::to_string(generation.first_step);
    if (generation.merged() > 1) text += "-" + std::to_string(generation.last_step);
    text += "@" + std::to_string(generation.apply_step);
  }
  return text;
}

UpdateCycle cycle_of(const Plan& plan) { return {plan.period_steps, plan.generations}; }

Result<void> check_cycle(const UpdateCycle& cycle) {
  if (cycle.period_steps == 0) return at("period_steps", "0, a cycle has at least one step");
  if (cycle.period_steps > kMaxPlanSteps)
    return at("period_steps", std::to_string(cycle.period_steps) + " is absurdly large");
  if (cycle.generations.empty()) return at("generations", "there are none");
  std::uint64_t next_step = 0;
  std::uint64_t applied = 0;
  for (std::size_t i = 0; i < cycle.generations.size(); ++i) {
    const auto& generation = cycle.generations[i];
    const std::string place = "generations[" + std::to_string(i) + "]";
    if (auto ok = check_generation(generation, next_step, place); !ok) return ok;
    if (i > 0 && generation.apply_step <= applied)
      return at(place + ".apply_step", "not after that of the generation before it");
    next_step = std::uint64_t{generation.last_step} + 1;
    applied = generation.apply_step;
  }
  if (next_step != cycle.period_steps)
    return at("period_steps", std::to_string(cycle.period_steps) + ", and the generations merge the steps below " +
                                  std::to_string(next_step));
  if (applied >= std::uint64_t{cycle.generations.front().apply_step} + cycle.period_steps)
    return at("generations[" + std::to_string(cycle.generations.size() - 1) + "].apply_step",
              "not before the next cycle's first");
  return {};
}

std::uint32_t slots_needed(const UpdateCycle& cycle) {
  const std::size_t count = cycle.generations.size();
  std::uint32_t most = 1;
  for (std::size_t g = 0; g < count; ++g) {
    std::uint32_t open = 1;
    while (true) {  // the generations that begin before this one is applied
      const std::size_t next = g + open;
      const std::uint64_t begins =
          std::uint64_t{cycle.generations[next % count].first_step} + std::uint64_t{next / count} * cycle.period_steps;
      if (begins >= cycle.generations[g].apply_step) break;
      ++open;
    }
    most = std::max(most, open);
  }
  return most;
}

std::uint32_t longest_delay(const UpdateCycle& cycle) {
  std::uint32_t longest = 0;
  for (const auto& generation : cycle.generations)
    longest = std::max(longest, generation.apply_step - generation.first_step);
  return longest;
}

std::uint64_t Calendar::end_of(std::size_t stretch) const {
  return stretch + 1 < stretches_.size() ? stretches_[stretch + 1].first_step
                                         : std::numeric_limits<std::uint64_t>::max();
}

Dated Calendar::dated(std::size_t stretch, std::uint64_t index) const {
  const Stretch& s = stretches_[stretch];
  const std::uint64_t count = s.cycle.generations.size();
  const PlanGeneration& planned = s.cycle.generations[index % count];
  const std::uint64_t begin = s.first_step + index / count * s.cycle.period_steps;
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
  const auto in_cycle = static_cast<std::uint32_t>(since % s.cycle.period_steps);
  std::uint64_t index = since / s.cycle.period_steps * s.cycle.generations.size();
  while (s.cycle.generations[index % s.cycle.generations.size()].last_step < in_cycle) ++index;
  return dated(at, index);
}

Dated Calendar::at(std::uint64_t generation) const {
  std::size_t stretch = stretches_.size() - 1;
  while (stretch > 0 && stretches_[stretch].first_generation > generation) --stretch;
  const std::uint64_t first = stretches_[stretch].first_generation;
  return dated(stretch, generation - std::min(generation, first));
}

std::uint64_t Calendar::end_of_stretch(std::uint64_t step) const { return end_of(stretch_of_step(step)); }

void Calendar::number_from(std::size_t stretch) {
  for (std::size_t i = std::max<std::size_t>(stretch, 1); i < stretches_.size(); ++i)
    stretches_[i].first_generation = of_step(stretches_[i].first_step - 1).generation + 1;
  if (stretches_.size() > kRemembered) stretches_.erase(stretches_.begin());
}

void Calendar::follow(std::uint64_t step, UpdateCycle cycle) {
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

}  // namespace deft::model
