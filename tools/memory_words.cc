#include "tools/memory_words.h"

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/quantities.h"

namespace deft::tools {
namespace {

using replay::MemoryPeak;
using replay::StepMemory;
using trace::MemoryPart;

struct Part {
  MemoryPart part;
  const char* words;
  const char* json;
};
constexpr Part kParts[] = {{MemoryPart::kWeights, "weights", "weights"},
                           {MemoryPart::kOptimizer, "optimizer state", "optimizer"},
                           {MemoryPart::kArena, "arena", "arena"},
                           {MemoryPart::kGradients, "gradients outside it", "gradients"},
                           {MemoryPart::kInputs, "inputs", "inputs"},
                           {MemoryPart::kActivations, "activations", "activations"},
                           {MemoryPart::kTemporary, "of that layer alone", "temporary"}};

struct WorkerPeak {
  const StepMemory* memory;
  MemoryPeak peak;
};

std::vector<WorkerPeak> peaks_of(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if) {
  std::vector<WorkerPeak> peaks;
  for (const StepMemory& memory : measured.memories) peaks.push_back({&memory, memory_peak(memory, what_if)});
  return peaks;
}

const WorkerPeak& largest(const std::vector<WorkerPeak>& peaks) {
  const WorkerPeak* most = &peaks.front();
  for (const WorkerPeak& peak : peaks)
    if (peak.peak.use.total() > most->peak.use.total()) most = &peak;
  return *most;
}

struct NodeUse {
  std::size_t workers = 0;
  double bytes = 0, arenas = 0;  // if all workers have their peak at once
};

std::map<std::uint32_t, NodeUse> nodes_of(const std::vector<WorkerPeak>& peaks) {
  std::map<std::uint32_t, NodeUse> nodes;
  for (const WorkerPeak& worker : peaks) {
    NodeUse& node = nodes[worker.memory->node];
    ++node.workers;
    node.bytes += worker.peak.use.total();
    node.arenas += worker.peak.use.of(MemoryPart::kArena);
  }
  return nodes;
}

}  // namespace

void print_memory(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if) {
  const auto peaks = peaks_of(measured, what_if);
  if (peaks.empty()) {
    std::printf("memory: not recorded\n");
    return;
  }
  const WorkerPeak& most = largest(peaks);
  std::printf("memory: rank %u needs %s, in %s:", most.memory->rank, size_words(most.peak.use.total()).c_str(),
              most.memory->describe(most.peak.position).c_str());
  const char* separator = " ";
  for (const Part& part : kParts) {
    const double bytes = most.peak.use.of(part.part);
    if (bytes < 1) continue;
    std::printf("%s%s %s", separator, part.words, size_words(bytes).c_str());
    separator = ", ";
  }
  std::printf("\n");
  for (const auto& [number, node] : nodes_of(peaks))
    std::printf("        node %u: %zu worker%s, %s, of which the daemon shares %s\n", number, node.workers,
                node.workers == 1 ? "" : "s", size_words(node.bytes).c_str(), size_words(node.arenas).c_str());
}

nlohmann::json memory_json(const replay::MeasuredJob& measured, const replay::MemoryWhatIf& what_if) {
  const auto peaks = peaks_of(measured, what_if);
  if (peaks.empty()) return nullptr;
  nlohmann::json workers = nlohmann::json::array(), nodes = nlohmann::json::array();
  for (const WorkerPeak& worker : peaks) {
    nlohmann::json parts;
    for (const Part& part : kParts) parts[part.json] = worker.peak.use.of(part.part);
    workers.push_back({{"rank", worker.memory->rank},
                       {"node", worker.memory->node},
                       {"samples", worker.memory->samples},
                       {"peak_bytes", worker.peak.use.total()},
                       {"where", worker.memory->describe(worker.peak.position)},
                       {"parts", std::move(parts)}});
  }
  for (const auto& [number, node] : nodes_of(peaks))
    nodes.push_back({{"node", number}, {"workers", node.workers}, {"bytes", node.bytes}, {"arenas", node.arenas}});
  return {
      {"peak_bytes", largest(peaks).peak.use.total()}, {"workers", std::move(workers)}, {"nodes", std::move(nodes)}};
}

}  // namespace deft::tools
