#include "core/optimize/model_cuts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/base/numbers.h"

namespace deft::optimize {
namespace {

using replay::LayerRange;
using replay::StepMemory;

constexpr std::size_t kDeepest = 8;

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
  return parse_whole<std::size_t>(dot == std::string::npos ? name : name.substr(dot + 1));
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

// So many neighbours are tried together: 1, 2, 3, 4, 8, 16, ...
std::size_t next_number(std::size_t together) { return together < 4 ? together + 1 : together * 2; }

}  // namespace

std::vector<std::vector<LayerRange>> ways_to_cut(const StepMemory& memory, std::size_t most_ranges) {
  std::vector<std::vector<LayerRange>> ways;
  std::set<std::vector<std::pair<std::size_t, std::size_t>>> seen;
  for (std::size_t depth = 1; depth <= kDeepest; ++depth) {
    for (std::size_t together = 1; together <= memory.layers.size(); together = next_number(together)) {
      auto ranges = ranges_of(memory, depth, together);
      std::vector<std::pair<std::size_t, std::size_t>> cuts;
      for (const LayerRange& range : ranges) cuts.emplace_back(range.first, range.last);
      if (ranges.size() <= most_ranges && seen.insert(std::move(cuts)).second) ways.push_back(std::move(ranges));
    }
  }
  return ways;
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
    const auto next = last + 1;
    if (next != modules.end() && are_of_one_list(end, next->name) && *place_of(next->name) > *place_of(end)) {
      const std::string parent = parent_of(end);
      end = (parent.empty() ? "" : parent + ".") + std::to_string(*place_of(next->name) - 1);
    }
    return end == first->name ? end : first->name + " to " + end;
  }
  return memory.layers[range.first].name + " to " + memory.layers[range.last].name;
}

}  // namespace deft::optimize
