#include "core/replay/core_waits.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/replay/launches.h"
#include "core/replay/other_programs.h"
#include "core/replay/quantiles.h"
#include "core/replay/worker_steps.h"
#include "core/trace/cores_trace.h"

namespace deft::replay {
namespace {

constexpr double kMostShare = 0.5;  // of compute: more cannot be for the daemons alone

// The share of the time in which a worker's main thread usually had no core. A pause of the machine makes few steps much longer, and the
// usual step not.
double usual_waiting(const trace::NodeTrace& trace) {
  std::vector<double> shares;
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kCores || record.end_us() <= record.begin_us()) continue;
    const auto cores = record.as<trace::CoresTrace>();
    const double worker_us =
        static_cast<double>(record.end_us() - record.begin_us()) * std::max<double>(1, cores.workers);
    shares.push_back(std::min(1.0, static_cast<double>(cores.waited_us) / worker_us));
  }
  return median(shares);
}

// The share of the node's compute in which its slowest worker had no core because of the daemons.
double share_of_compute(const AlignedNode& node, const CoreShares& cores) {
  const trace::TraceGroup* const group = largest_group(node.trace);
  if (group == nullptr) return 0;
  double slowest_us = 0, whole_us = 0;
  for (const std::uint32_t worker : recorded_workers(node.trace)) {
    std::vector<double> compute_us, steps_us;
    for (const WorkerStep& step : steps_of(node.trace, *group, worker))
      compute_us.push_back(step.compute_us()), steps_us.push_back(step.whole_us);
    if (const double us = median(compute_us); us > slowest_us) slowest_us = us, whole_us = median(steps_us);
  }
  if (slowest_us <= 0) return 0;
  return std::clamp(usual_waiting(node.trace) * cores.daemons * whole_us / slowest_us, 0.0, kMostShare);
}

// What the leader's launches took beside their bytes, and for them.
void add_launches(const trace::NodeTrace& leader, const std::vector<model::ProfileLink>& links, CoreWaits& waits) {
  std::uint64_t first_step = std::numeric_limits<std::uint64_t>::max(), last_step = 0;
  double parts = 0, for_parts_us = 0, for_bytes_us = 0;
  for (const NodeLaunch& launch : launches_of(leader)) {
    if (!launch.order || !launch.last_step || launch.link >= leader.header.links.size()) continue;
    const auto link = std::ranges::find(links, leader.header.links[launch.link], &model::ProfileLink::name);
    if (link == links.end() || !link->bytes_per_us) continue;
    first_step = std::min(first_step, *launch.last_step), last_step = std::max(last_step, *launch.last_step);
    parts += 1;
    for_parts_us += link->latency_us;
    for_bytes_us += static_cast<double>(launch.wire_bytes) / *link->bytes_per_us;
  }
  if (for_bytes_us <= 0) return;
  waits.parts_per_step = parts / (static_cast<double>(last_step - first_step) + 1);
  waits.cost_of_parts = for_parts_us / (for_parts_us + for_bytes_us);
}

}  // namespace

CoreWaits core_waits_of(const JobTrace& job, const std::vector<model::ProfileLink>& links) {
  CoreWaits waits;
  const auto cores = shares_of_cores(job, 0);
  for (std::size_t node = 0; node < job.nodes.size(); ++node)
    waits.share.push_back(cores[node] ? share_of_compute(job.nodes[node], *cores[node]) : 0);
  add_launches(job.leader()->trace, links, waits);
  return waits;
}

std::vector<sim::NodeSpeed> with_fewer_waits(std::vector<sim::NodeSpeed> nodes, const CoreWaits& waits,
                                             double parts_per_step) {
  if (waits.parts_per_step <= 0) return nodes;
  const double fewer = std::clamp(1 - parts_per_step / waits.parts_per_step, 0.0, 1.0);
  for (std::size_t node = 0; node < std::min(nodes.size(), waits.share.size()); ++node)
    nodes[node].slowdown *= 1 - waits.share[node] * waits.cost_of_parts * fewer;
  return nodes;
}

}  // namespace deft::replay
