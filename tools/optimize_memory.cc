#include "tools/optimize_memory.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/quantities.h"
#include "core/base/text.h"
#include "core/optimize/model_cuts.h"

namespace deft::tools {
namespace {

using Choice = optimize::MemoryFit::Choice;

std::string cost(const Choice& choice) {
  char text[48];
  std::snprintf(text, sizeof text, ", %.1f ms a step", choice.step_us / 1000);
  return size_words(choice.peak_bytes) + text;
}

std::vector<std::string> modules_of(const Choice& choice, const replay::MeasuredJob& measured) {
  std::vector<std::string> modules;
  for (const auto& range : choice.what_if.recomputed)
    modules.push_back(optimize::describe(measured.memories.front(), range));
  return modules;
}

std::string what_to_do(const Choice& choice, const replay::MeasuredJob& measured) {
  const auto& what_if = choice.what_if;
  if (what_if.passes > 1) {
    const std::string passes = std::to_string(what_if.passes);
    const std::uint32_t samples = measured.memories.front().samples;
    const std::string each = samples > 0 ? " of " + std::to_string(samples / what_if.passes) + " samples" : "";
    return "accumulate gradients: " + passes + " micro-batches" + each +
           " a step, and DistributedOptimizer(..., backward_passes_per_step=" + passes + ")";
  }
  return "recompute: torch.utils.checkpoint around " + joined(modules_of(choice, measured), ", ");
}

nlohmann::json choice_json(const std::optional<Choice>& choice, const replay::MeasuredJob& measured) {
  if (!choice) return nullptr;
  return {{"peak_bytes", choice->peak_bytes},
          {"step_us", choice->step_us},
          {"passes", choice->what_if.passes},
          {"modules", modules_of(*choice, measured)}};
}

}  // namespace

std::vector<std::string> memory_advice(const optimize::MemoryFit& fit, const replay::MeasuredJob& measured) {
  const std::string traced = "memory: a worker needs " + size_words(fit.traced.peak_bytes);
  const std::string limit = size_words(static_cast<double>(fit.limit_bytes));
  if (!fit.is_needed()) return {traced + ", which is within " + limit};
  std::vector<std::string> lines = {traced + ", more than " + limit + ". The script must " +
                                    what_to_do(fit.chosen(), measured)};
  lines.push_back("that takes " + cost(fit.chosen()) + " by replay, instead of " + cost(fit.traced));
  if (fit.accumulation && fit.recomputation) {
    const bool accumulates = &fit.chosen() == &*fit.accumulation;
    lines.push_back("slower: " + what_to_do(accumulates ? *fit.recomputation : *fit.accumulation, measured) + " (" +
                    cost(accumulates ? *fit.recomputation : *fit.accumulation) + ")");
  }
  return lines;
}

nlohmann::json memory_fit_json(const optimize::MemoryFit& fit, const replay::MeasuredJob& measured) {
  const auto& chosen = fit.chosen();
  const char* const name = chosen.what_if.passes > 1            ? "accumulation"
                           : !chosen.what_if.recomputed.empty() ? "recomputation"
                                                                : "none";
  return {{"limit_bytes", fit.limit_bytes},
          {"choice", name},
          {"traced", choice_json(fit.traced, measured)},
          {"accumulation", choice_json(fit.accumulation, measured)},
          {"recomputation", choice_json(fit.recomputation, measured)}};
}

}  // namespace deft::tools
