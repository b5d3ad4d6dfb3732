// The peak of a worker's memory over a step: as traced, and with another batch, with accumulation, with recomputation.
//
//   const MemoryPeak peak = memory_peak(measured.memories.front(), {});
//   peak.use.total(), peak.use.of(trace::MemoryPart::kActivations), memory.describe(peak.position)
//   const MemoryPeak less = memory_peak(memory, {.passes = 4});      // four micro-batches a step
//
// A traced amount says how many of its bytes grow with the batch. With several passes, gradients are added up
// outside the arena, and each is handed over in the last pass.
//
// Recomputing the layers first to last means: what forward allocates between them for backward is freed as soon as the next layer
// has used it. When backward comes to the last of them, forward is repeated from the first one's input, which is kept. What a later
// layer takes as its input is kept, too. torch.utils.checkpoint does this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/profile.h"
#include "core/replay/step_memory.h"

namespace deft::replay {

struct LayerRange {
  std::size_t first = 0, last = 0;
  bool operator==(const LayerRange&) const = default;
};

struct MemoryWhatIf {
  double batch = 1;                         // so many times as large
  std::uint32_t passes = 1;                 // the batch comes in so many micro-batches, whose gradients are added up
  std::vector<LayerRange> recomputed = {};  // ascending, and none overlaps another

  [[nodiscard]] bool is_as_traced() const { return batch == 1 && passes == 1 && recomputed.empty(); }
};

struct MemoryUse {
  std::array<double, static_cast<std::size_t>(trace::kLastMemoryPart) + 1> bytes{};  // by part

  [[nodiscard]] double& of(trace::MemoryPart part) { return bytes[static_cast<std::size_t>(part)]; }
  [[nodiscard]] double of(trace::MemoryPart part) const { return bytes[static_cast<std::size_t>(part)]; }
  [[nodiscard]] double total() const;
};

struct MemoryPeak {
  MemoryUse use;
  std::size_t position = 0;
};

// By position.
std::vector<MemoryUse> memory_uses(const StepMemory& memory, const MemoryWhatIf& what_if);
MemoryPeak memory_peak(const StepMemory& memory, const MemoryWhatIf& what_if);

// The profile, whose buckets are those of the trace, with what this costs in time. Compute grows in proportion to the batch, but for
// `rest_us` of the first bucket's forward. All passes but the last come between forward and backward, so that they hide no
// communication. Forwards are repeated before the gradients of their range. `memory` is null if nothing is recomputed.
model::Profile with_memory(model::Profile profile, double rest_us, const StepMemory* memory,
                           const MemoryWhatIf& what_if);

}  // namespace deft::replay
