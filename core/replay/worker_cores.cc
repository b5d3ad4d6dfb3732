#include "core/replay/worker_cores.h"

#include <algorithm>
#include <vector>

#include "core/model/daemon_thread.h"
#include "core/replay/quantiles.h"
#include "core/replay/worker_steps.h"
#include "core/trace/cores_trace.h"

namespace deft::replay {
namespace {

// The share of a step in which a worker of this node computes. Of several workers the one that computes longest counts.
double share_of_compute(const trace::NodeTrace& trace) {
  const trace::TraceGroup* const group = largest_group(trace);
  if (group == nullptr) return 0;
  double share = 0;
  for (const std::uint32_t worker : recorded_workers(trace)) {
    std::vector<double> compute_us, steps_us;
    for (const WorkerStep& step : steps_of(trace, *group, worker))
      compute_us.push_back(step.compute_us()), steps_us.push_back(step.whole_us);
    if (const double step_us = median(steps_us); step_us > 0) share = std::max(share, median(compute_us) / step_us);
  }
  return share;
}

// The processor time of the node's daemon, in the time of which the trace tells.
double daemon_share(const trace::NodeTrace& trace) {
  double cpu_us = 0, all_us = 0;
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kCpu) continue;
    const auto cpu = record.as<trace::CpuTrace>();
    if (cpu.thread != static_cast<std::uint16_t>(model::DaemonThread::kAll)) continue;
    cpu_us += static_cast<double>(cpu.cpu_us);
    all_us += static_cast<double>(record.end_us() - record.begin_us());
  }
  return all_us > 0 ? cpu_us / all_us : 0;
}

}  // namespace

double compute_on_cores(const JobTrace& job, std::size_t node) {
  const trace::NodeTrace& trace = job.nodes[node].trace;
  double all_us = 0, used_us = 0, workers_us = 0;
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kCores) continue;
    const auto cores = record.as<trace::CoresTrace>();
    const auto us = static_cast<double>(record.end_us() - record.begin_us());
    all_us += us;
    used_us += static_cast<double>(cores.own_us) + static_cast<double>(cores.waited_us);
    workers_us += us * cores.workers;
  }
  const double computing_us = share_of_compute(trace) * workers_us;
  if (computing_us <= 0) return 1;
  return std::clamp((used_us - daemon_share(trace) * all_us) / computing_us, 0.0, 1.0);
}

}  // namespace deft::replay
