// Reads from a trace (trace::MemoryTrace) what a step of each worker held in memory.
//
//   for (const StepMemory& memory : step_memories(job, problems)) ... memory.rank, memory.layers, memory.amounts
//
// A worker that has told nothing, or not all of it, is left out and named. The newest step that was told as a whole counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/replay/job_trace.h"

namespace deft::replay {

struct StepMemory {
  struct Layer {
    std::string name;  // of the module that owns its parameters
    double forward_us = 0;
    std::uint64_t first_byte = 0;  // of its first tensor, in the arena, whatever the buckets are
    std::uint64_t left_bytes = 0;  // of the gradients that backward has not produced when it comes to this layer
  };
  std::uint32_t node = 0;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint32_t samples = 0;         // of the batch; 0: not known
  std::uint64_t gradient_bytes = 0;  // of all gradients
  std::vector<Layer> layers = {};    // in forward order
  std::vector<trace::MemoryTrace> amounts = {};

  // The positions of a step: trace::MemoryTrace.
  [[nodiscard]] std::size_t forward(std::size_t layer) const { return layer + 1; }
  [[nodiscard]] std::size_t loss() const { return layers.size() + 1; }
  [[nodiscard]] std::size_t backward(std::size_t layer) const { return 2 * layers.size() + 1 - layer; }
  [[nodiscard]] std::size_t update() const { return 2 * layers.size() + 2; }
  [[nodiscard]] std::size_t after() const { return update() + 1; }
  // "forward of blocks.0.up"
  [[nodiscard]] std::string describe(std::size_t position) const;
  [[nodiscard]] bool has_times() const;  // of its layers
};

std::vector<StepMemory> step_memories(const JobTrace& job, std::vector<std::string>& problems);

}  // namespace deft::replay
