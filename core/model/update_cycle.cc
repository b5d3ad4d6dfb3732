#include "core/model/update_cycle.h"

#include <algorithm>
#include <charconv>
#include <numeric>
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

Result<void> check_cycles(const UpdateCycles& cycles, std::size_t buckets) {
  if (auto ok = check_cycle(cycles.usual); !ok) return ok;
  for (const auto& [bucket, own] : cycles.own) {
    if (bucket >= buckets)
      return at("own_generations",
                "of bucket " + std::to_string(bucket) + ", and there are " + std::to_string(buckets) + " buckets");
    auto ok = own.period_steps == cycles.period_steps()
                  ? check_cycle(own)
                  : at("period_steps", std::to_string(own.period_steps) + ", and the other buckets' is " +
                                           std::to_string(cycles.period_steps()));
    if (!ok) return tl::unexpected(ok.error().in("bucket " + std::to_string(bucket)));
  }
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

std::uint32_t slots_needed(const UpdateCycles& cycles) {
  std::uint32_t most = slots_needed(cycles.usual);
  for (const auto& [bucket, cycle] : cycles.own) most = std::max(most, slots_needed(cycle));
  return most;
}

std::uint32_t longest_delay(const UpdateCycles& cycles) {
  std::uint32_t longest = longest_delay(cycles.usual);
  for (const auto& [bucket, cycle] : cycles.own) longest = std::max(longest, longest_delay(cycle));
  return longest;
}

namespace {

void repeat(UpdateCycle& cycle, std::uint32_t period_steps) {
  const std::size_t count = cycle.generations.size();
  for (std::uint32_t begin = cycle.period_steps; begin < period_steps; begin += cycle.period_steps)
    for (std::size_t g = 0; g < count; ++g) {
      const PlanGeneration& first = cycle.generations[g];
      cycle.generations.push_back({begin + first.first_step, begin + first.last_step, begin + first.apply_step});
    }
  cycle.period_steps = period_steps;
}

constexpr std::uint64_t kLongestCommon = 4096;  // steps

// Repeats all cycles until they are of one length; false: that would be absurdly long.
bool make_alike(UpdateCycles& cycles) {
  std::uint64_t period = cycles.usual.period_steps;
  for (const auto& [bucket, cycle] : cycles.own) {
    period = std::lcm(period, std::uint64_t{cycle.period_steps});
    if (period > kLongestCommon) return false;
  }
  repeat(cycles.usual, static_cast<std::uint32_t>(period));
  for (auto& [bucket, cycle] : cycles.own) repeat(cycle, static_cast<std::uint32_t>(period));
  return true;
}

// "2,3:0-1@3" to `cycles`.
Result<void> parse_own(std::string_view text, UpdateCycles& cycles) {
  const auto colon = text.find(':');
  std::string_view buckets = text.substr(0, colon);
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorKind::kInvalid, "'" + std::string(text) + "' " + what,
                "write the numbers of buckets and their cycle, for instance 2,3:0-1@3");
  };
  if (colon == std::string_view::npos) return refuse("names no buckets");
  auto cycle = parse_cycle(text.substr(colon + 1));
  if (!cycle) return tl::unexpected(cycle.error());
  do {
    const auto bucket = take_number(buckets);
    if (!bucket) return refuse("names no buckets");
    if (!cycles.own.emplace(*bucket, *cycle).second) return refuse("names a bucket that has a cycle already");
  } while (take(buckets, ','));
  if (!buckets.empty()) return refuse("names no buckets");
  return {};
}

}  // namespace

Result<UpdateCycles> parse_cycles(std::string_view text) {
  UpdateCycles cycles;
  const std::string whole(text);
  const auto semicolon = text.find(';');
  auto usual = parse_cycle(text.substr(0, semicolon));
  if (!usual) return tl::unexpected(usual.error());
  cycles.usual = std::move(*usual);
  for (auto at = semicolon; at != std::string_view::npos;) {
    text.remove_prefix(at + 1);
    at = text.find(';');
    if (auto ok = parse_own(text.substr(0, at), cycles); !ok) return tl::unexpected(ok.error());
  }
  if (!make_alike(cycles))
    return fail(ErrorKind::kInvalid, "the cycles of '" + whole + "' have no common length below " +
                                         std::to_string(kLongestCommon) + " steps");
  return cycles;
}

std::string to_text(const UpdateCycles& cycles) {
  std::map<std::string, std::string> others;  // cycle to buckets
  for (const auto& [bucket, cycle] : cycles.own) {
    std::string& buckets = others[to_text(cycle)];
    buckets += (buckets.empty() ? "" : ",") + std::to_string(bucket);
  }
  std::string text = to_text(cycles.usual);
  for (const auto& [cycle, buckets] : others) text += ";" + buckets + ":" + cycle;
  return text;
}

}  // namespace deft::model
