#include "core/optimize/memory_fit.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

using replay::LayerRange;
using replay::MeasuredJob;
using replay::MemoryWhatIf;
using replay::StepMemory;

constexpr std::uint32_t kMostPasses = 4096;
constexpr std::size_t kMostRanges = 96;  // of one way to cut the model
constexpr std::size_t kDeepest = 8;

double peak_of(const MeasuredJob& measured, const MemoryWhatIf& what_if) {
  double most = 0;
  for (const StepMemory& memory : measured.memories) most = std::max(most, memory_peak(memory, what_if).use.total());
  return most;
}

// The step as traced, or with less memory; nothing if it cannot be replayed.
std::optional<MemoryFit::Choice> choice(const MeasuredJob& measured, const MemoryWhatIf& what_if) {
  const auto prediction = replay::replay(measured, {.memory = what_if});
  if (!prediction) return std::nullopt;
  return MemoryFit::Choice{what_if, peak_of(measured, what_if), prediction->step_us_p50};
}

// Numbers of micro-batches that divide every worker's batch; powers of two if a batch is not known.
std::vector<std::uint32_t> numbers_of_passes(const MeasuredJob& measured) {
  const bool known =
      std::ranges::all_of(measured.memories, [](const StepMemory& memory) { return memory.samples > 0; });
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t passes = 2; passes <= kMostPasses; ++passes) {
    const bool fits =
        known ? std::ranges::all_of(measured.memories, [&](const auto& memory) { return memory.samples % passes == 0; })
              : (passes & (passes - 1)) == 0;
    if (fits) numbers.push_back(passes);
  }
  return numbers;
}

// The bytes above the limit, summed over all positions.
double excess_of(const StepMemory& memory, const MemoryWhatIf& what_if, double limit) {
  double excess = 0;
  for (const auto& use : memory_uses(memory, what_if)) excess += std::max(0.0, use.total() - limit);
  return excess;
}

double time_of(const StepMemory& memory, const LayerRange& range) {
  double us = 0;
  for (std::size_t layer = range.first; layer <= range.last; ++layer) us += memory.layers[layer].forward_us;
  return us;
}

// The first `depth` parts of a name: "blocks.0.up" at depth 2 is "blocks.0".
std::string prefix_of(const std::string& name, std::size_t depth) {
  std::size_t at = 0;
  for (; depth > 0 && at != std::string::npos; --depth) at = name.find('.', at == 0 ? 0 : at + 1);
  return name.substr(0, at);
}

// The module that holds a module of this name: "blocks" of "blocks.0".
std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// A module of a sequence or list has its place as the last part of its name.
std::optional<std::size_t> place_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
  std::size_t place = 0;
  const auto read = std::from_chars(last.data(), last.data() + last.size(), place);
  if (read.ec != std::errc{} || read.ptr != last.data() + last.size()) return std::nullopt;
  return place;
}

bool are_of_one_list(const std::string& a, const std::string& b) {
  return place_of(a) && place_of(b) && parent_of(a) == parent_of(b);
}

struct Module {
  std::string name;
  LayerRange layers;
};

// The model's layers, cut where the module of this depth changes.
std::vector<Module> modules_of(const StepMemory& memory, std::size_t depth) {
  std::vector<Module> modules;
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const std::string name = prefix_of(memory.layers[layer].name, depth);
    if (!modules.empty() && modules.back().name == name)
      modules.back().layers.last = layer;
    else
      modules.push_back({name, {layer, layer}});
  }
  return modules;
}

// What a script can recompute: modules of this depth that hold several layers, and so many neighbours of a list together.
std::vector<LayerRange> ranges_of(const StepMemory& memory, std::size_t depth, std::size_t together) {
  const auto modules = modules_of(memory, depth);
  std::vector<LayerRange> ranges;
  for (std::size_t i = 0; i < modules.size();) {
    std::size_t end = i + 1;
    while (end < modules.size() && end - i < together && are_of_one_list(modules[i].name, modules[end].name)) ++end;
    const LayerRange range{modules[i].layers.first, modules[end - 1].layers.last};
    if (range.last > range.first || place_of(modules[i].name)) ranges.push_back(range);
    i = end;
  }
  return ranges;
}

// Takes ranges until the worker fits, the cheapest first; nothing if all of them are not enough.
std::optional<std::vector<LayerRange>> take_ranges(const StepMemory& memory, std::vector<LayerRange> ranges,
                                                   double limit) {
  MemoryWhatIf what_if;
  double excess = excess_of(memory, what_if, limit);
  while (excess > 0) {
    double best_price = std::numeric_limits<double>::infinity(), best_excess = 0;
    std::size_t best = ranges.size();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      MemoryWhatIf more = what_if;
      more.recomputed.push_back(ranges[i]);
      const double left = excess_of(memory, more, limit);
      if (left >= excess) continue;
      const double price = (time_of(memory, ranges[i]) + 1) / (excess - left);
      if (price < best_price) best = i, best_price = price, best_excess = left;
    }
    if (best == ranges.size()) return std::nullopt;
    what_if.recomputed.push_back(ranges[best]);
    ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(best));
    excess = best_excess;
  }
  std::ranges::sort(what_if.recomputed, {}, &LayerRange::first);
  return what_if.recomputed;
}

const StepMemory& largest(const MeasuredJob& measured) {
  return *std::ranges::max_element(measured.memories, {},
                                   [](const StepMemory& memory) { return memory_peak(memory, {}).use.total(); });
}

// All workers have the same layers, so a range means the same modules.
bool can_recompute(const MeasuredJob& measured) {
  const auto& first = measured.memories.front();
  return first.has_times() && std::ranges::all_of(measured.memories, [&](const StepMemory& memory) {
           return memory.layers.size() == first.layers.size();
         });
}

std::optional<MemoryFit::Choice> accumulation(const MeasuredJob& measured, double limit) {
  for (const std::uint32_t passes : numbers_of_passes(measured))
    if (peak_of(measured, {.passes = passes}) <= limit) return choice(measured, {.passes = passes});
  return std::nullopt;
}

std::optional<MemoryFit::Choice> recomputation(const MeasuredJob& measured, double limit, double& least) {
  if (!can_recompute(measured)) return std::nullopt;
  const StepMemory& memory = largest(measured);
  std::optional<MemoryFit::Choice> best;
  std::set<std::vector<std::pair<std::size_t, std::size_t>>> seen;
  for (std::size_t depth = 1; depth <= kDeepest; ++depth)
    for (std::size_t together = 1; together <= memory.layers.size();
         together = together < 4 ? together + 1 : together * 2) {
      const auto ranges = ranges_of(memory, depth, together);
      std::vector<std::pair<std::size_t, std::size_t>> cuts;
      for (const LayerRange& range : ranges) cuts.emplace_back(range.first, range.last);
      if (ranges.size() > kMostRanges || !seen.insert(cuts).second) continue;
      least = std::min(least, peak_of(measured, {.recomputed = ranges}));
      const auto taken = take_ranges(memory, ranges, limit);
      if (!taken || peak_of(measured, {.recomputed = *taken}) > limit) continue;
      auto found = choice(measured, {.recomputed = *taken});
      if (found && (!best || found->step_us < best->step_us)) best = std::move(found);
    }
  return best;
}

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", bytes / 1048576);
  return text;
}

}  // namespace

const MemoryFit::Choice& MemoryFit::chosen() const {
  if (!is_needed()) return traced;
  if (!accumulation) return *recomputation;
  if (!recomputation) return *accumulation;
  return recomputation->step_us < accumulation->step_us ? *recomputation : *accumulation;
}

Result<MemoryFit> fit_memory(const replay::MeasuredJob& measured, std::uint64_t limit_bytes) {
  if (measured.memories.empty())
    return fail(ErrorKind::kInvalid, "the trace does not tell what workers hold in memory",
                "trace some more steps of a PyTorch job: see Memory in docs/tracing.md");
  auto traced = choice(measured, {});
  if (!traced) return fail(ErrorKind::kInvalid, "the traced job cannot be replayed");
  MemoryFit fit{.limit_bytes = limit_bytes, .traced = *std::move(traced)};
  if (!fit.is_needed()) return fit;
  const auto limit = static_cast<double>(limit_bytes);
  double least = fit.traced.peak_bytes;
  fit.accumulation = accumulation(measured, limit);
  fit.recomputation = recomputation(measured, limit, least);
  if (fit.accumulation || fit.recomputation) return fit;
  if (const auto numbers = numbers_of_passes(measured); !numbers.empty())
    least = std::min(least, peak_of(measured, {.passes = numbers.back()}));
  return fail(ErrorKind::kExhausted,
              "a worker needs " + megabytes(fit.traced.peak_bytes) +
                  ", and neither accumulation nor recomputation brings it below " + megabytes(limit) +
                  ": the least is " + megabytes(least),
              "give more memory, or take a smaller model or optimizer");
}

std::string describe(const replay::StepMemory& memory, const replay::LayerRange& range) {
  for (std::size_t depth = 1; depth <= kDeepest; ++depth) {
    const auto modules = modules_of(memory, depth);
    const auto first =
        std::ranges::find(modules, range.first, [](const Module& module) { return module.layers.first; });
    const auto last = std::ranges::find(modules, range.last, [](const Module& module) { return module.layers.last; });
    if (first == modules.end() || last == modules.end()) continue;
    if (first != last && !are_of_one_list(first->name, last->name)) continue;
    // Modules without parameters follow, such as an activation.
    std::string end = last->name;
    if (const auto next = last + 1; next != modules.end() && are_of_one_list(end, next->name)) {
      const std::string parent = parent_of(end);
      end = (parent.empty() ? "" : parent + ".") + std::to_string(std::max(*place_of(end), *place_of(next->name) - 1));
    }
    return end == first->name ? end : first->name + " to " + end;
  }
  return memory.layers[range.first].name + " to " + memory.layers[range.last].name;
}

}  // namespace deft::optimize
