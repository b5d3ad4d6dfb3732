#include "core/replay/step_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/replay/recut.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

using trace::MemoryPart;
using trace::TraceKind;

constexpr std::size_t kMostLayers = 16'384;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50U;

// The name of the module that owns a parameter of this name.
std::string module_of(const std::string& tensor) {
  const std::size_t dot = tensor.rfind('.');
  return dot == std::string::npos || dot == 0 ? tensor : tensor.substr(0, dot);
}

// Puts together what one worker tells.
class MemoryReader {
 public:
  MemoryReader(const trace::NodeTrace& trace, std::uint32_t worker) : trace_(trace) {
    for (const auto& record : trace.records) {
      if (record.kind() == TraceKind::kLayer) {
        if (const auto layer = record.as<trace::LayerTrace>(); layer.worker == worker) layers_.push_back(layer);
      } else if (record.kind() == TraceKind::kMemory) {
        if (const auto amount = record.as<trace::MemoryTrace>(); amount.worker == worker) amounts_.push_back(amount);
      } else if (record.kind() == TraceKind::kMemoryStep) {
        if (const auto step = record.as<trace::MemoryStepTrace>(); step.worker == worker) end(step);
      }
    }
    if (!found_ && !layers_.empty()) torn_ = true;  // the trace ends within what the worker told
  }

  [[nodiscard]] std::optional<StepMemory> found() { return std::move(found_); }
  [[nodiscard]] bool torn() const { return torn_; }  // some of it is missing, or impossible

 private:
  void end(const trace::MemoryStepTrace& step) {
    StepMemory memory{.step = step.step, .samples = step.samples};
    const auto layers = std::exchange(layers_, {});
    memory.amounts = std::exchange(amounts_, {});
    const bool whole = layers.size() == step.layers && memory.amounts.size() == step.amounts && !layers.empty() &&
                       layers.size() <= kMostLayers && take_layers(layers, memory) && are_possible(memory);
    if (whole)
      found_ = std::move(memory);
    else
      torn_ = true;
  }

  bool take_layers(const std::vector<trace::LayerTrace>& layers, StepMemory& memory) const {
    const auto group = std::ranges::find(trace_.groups, layers.front().group, &trace::TraceGroup::group);
    if (group == trace_.groups.end()) return false;
    std::vector<std::uint64_t> left_bytes(group->tensors.size() + 1);  // [tensor]: of it and those behind it
    for (std::size_t i = group->tensors.size(); i-- > 0;)
      left_bytes[i] = left_bytes[i + 1] + std::min(group->tensors[i].bytes, kMostBytes);
    const auto offsets = arena_offsets(*group);
    if (offsets.size() != group->tensors.size()) return false;
    for (const auto& layer : layers) {
      if (layer.layer != memory.layers.size() || layer.tensor >= group->tensors.size() ||
          layer.group != layers.front().group)
        return false;
      memory.layers.push_back({.name = module_of(group->tensors[layer.tensor].name),
                               .forward_us = static_cast<double>(layer.forward_ns) / 1000,
                               .first_byte = offsets[layer.tensor],
                               .left_bytes = left_bytes[layer.tensor]});
    }
    memory.gradient_bytes = left_bytes.front();
    return true;
  }

  static bool are_possible(const StepMemory& memory) {
    return std::ranges::all_of(memory.amounts, [&](const trace::MemoryTrace& amount) {
      const bool known = amount.input_of == trace::MemoryTrace::kNoLayer || amount.input_of < memory.layers.size();
      const bool temporary = amount.part == static_cast<std::uint16_t>(MemoryPart::kTemporary);
      return known && amount.begin <= amount.end && amount.end <= memory.after() && amount.growing <= amount.bytes &&
             amount.bytes <= kMostBytes && (!temporary || amount.begin == amount.end);
    });
  }

  const trace::NodeTrace& trace_;
  std::vector<trace::LayerTrace> layers_;
  std::vector<trace::MemoryTrace> amounts_;
  std::optional<StepMemory> found_;
  bool torn_ = false;
};

}  // namespace

std::string StepMemory::describe(std::size_t position) const {
  if (position == 0) return "before the step";
  if (position < loss()) return "forward of " + layers[position - 1].name;
  if (position == loss()) return "the loss";
  if (position < update()) return "backward of " + layers[2 * layers.size() + 1 - position].name;
  return position == update() ? "the update" : "after the step";
}

bool StepMemory::has_times() const {
  return std::ranges::any_of(layers, [](const Layer& layer) { return layer.forward_us > 0; });
}

std::vector<StepMemory> step_memories(const JobTrace& job, std::vector<std::string>& problems) {
  std::vector<StepMemory> memories;
  for (const auto& node : job.nodes) {
    const auto& ranks = node.trace.header.ranks;
    for (const std::uint32_t worker : recorded_workers(node.trace)) {
      MemoryReader reader(node.trace, worker);
      auto memory = reader.found();
      if (reader.torn() && !memory)
        problems.push_back("what rank " + std::to_string(ranks[worker]) + " tells of its memory is not complete");
      if (!memory) continue;
      memory->node = node.trace.header.node;
      memory->rank = ranks[worker];
      memories.push_back(std::move(*memory));
    }
  }
  return memories;
}

}  // namespace deft::replay
