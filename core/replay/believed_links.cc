#include "core/replay/believed_links.h"

#include <algorithm>
#include <iterator>

#include "core/replay/quantiles.h"
#include "core/trace/link_cost_trace.h"

namespace deft::replay {
namespace {

struct Cost {
  TimeUs at_us = 0;
  double latency_us = 0, bytes_per_us = 0;
};

// Those of one link, in order of time.
std::vector<Cost> costs_of(const trace::NodeTrace& leader, std::size_t link) {
  std::vector<Cost> costs;
  for (const auto& record : leader.records) {
    if (record.kind() != trace::TraceKind::kLinkCost) continue;
    const auto cost = record.as<trace::LinkCostTrace>();
    if (cost.link == link) costs.push_back({record.begin_us(), cost.latency_us, cost.bytes_per_us});
  }
  return costs;
}

// The newest one before `at_us`, or the first one.
const Cost& cost_at(const std::vector<Cost>& costs, TimeUs at_us) {
  const auto after = std::ranges::upper_bound(costs, at_us, {}, &Cost::at_us);
  return after == costs.begin() ? costs.front() : *std::prev(after);
}

}  // namespace

std::vector<model::LinkModel> believed_links(const trace::NodeTrace& leader, const std::vector<WorkerStep>& steps,
                                             const std::vector<model::ProfileLink>& links) {
  std::vector<model::LinkModel> believed;
  const auto& names = leader.header.links;
  for (const auto& link : links) {
    const auto costs = costs_of(leader, static_cast<std::size_t>(std::ranges::find(names, link.name) - names.begin()));
    if (costs.empty()) return {};
    std::vector<double> latencies_us, rates;
    for (const WorkerStep& step : steps) {
      const Cost& cost = cost_at(costs, step.backward_began_us);
      latencies_us.push_back(cost.latency_us), rates.push_back(cost.bytes_per_us);
    }
    believed.push_back({link.name, median(latencies_us), median(rates)});
  }
  return believed;
}

}  // namespace deft::replay
