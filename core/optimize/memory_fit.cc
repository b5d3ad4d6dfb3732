#include "core/optimize/memory_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/quantities.h"
#include "core/optimize/model_cuts.h"
#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

using replay::LayerRange;
using replay::MeasuredJob;
using replay::MemoryWhatIf;
using replay::StepMemory;

constexpr std::uint32_t kMostPasses = 4096;
constexpr std::size_t kMostRanges = 96;  // of one way to cut the model

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
  for (const auto& ranges : ways_to_cut(memory, kMostRanges)) {
    least = std::min(least, peak_of(measured, {.recomputed = ranges}));
    const auto taken = take_ranges(memory, ranges, limit);
    if (!taken || peak_of(measured, {.recomputed = *taken}) > limit) continue;
    auto found = choice(measured, {.recomputed = *taken});
    if (found && (!best || found->step_us < best->step_us)) best = std::move(found);
  }
  return best;
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
                "trace some more steps of a PyTorch job: see Memory in docs/replay.md");
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
              "a worker needs " + size_words(fit.traced.peak_bytes) +
                  ", and neither accumulation nor recomputation brings it below " + size_words(limit) +
                  ": the least is " + size_words(least),
              "give more memory, or take a smaller model or optimizer");
}

}  // namespace deft::optimize
