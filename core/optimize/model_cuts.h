// Ranges of layers that a script can recompute: whole modules, and neighbours of a list together.
//
//   for (const auto& ranges : ways_to_cut(memory, 96)) ...       // each way cuts the model into ranges
//   describe(memory, ranges.front());                            // "blocks.0"
//
// Layers are known by the names of their modules, in the order of forward: "blocks.0.up". Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/replay/memory_peak.h"

namespace deft::optimize {

// Cuts by modules of each depth of the model, and by several neighbours of a list together. No way comes twice, and none has more
// than `most_ranges` ranges.
std::vector<std::vector<replay::LayerRange>> ways_to_cut(const replay::StepMemory& memory, std::size_t most_ranges);

// The modules of a range of layers: "blocks.0", or "5 to 9" of a sequence.
std::string describe(const replay::StepMemory& memory, const replay::LayerRange& range);

}  // namespace deft::optimize
