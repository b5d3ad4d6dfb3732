#include "core/replay/other_programs.h"

#include <algorithm>
#include <cstdint>

#include "core/replay/causes.h"
#include "core/replay/daemon_cpu.h"
#include "core/replay/quantiles.h"
#include "core/trace/cores_trace.h"

namespace deft::replay {
namespace {

constexpr double kMuch = 0.1;      // of a node's cores: less is what any system does beside a job
constexpr double kWaiting = 0.05;  // of the time, that workers lose noticeably

struct Measured {
  double us = 0, busy_us = 0, own_us = 0, core_us = 0, waited_us = 0, worker_us = 0;
  double daemon_us = 0;
  std::uint64_t which = 0;  // cores
};

Measured measured_on(const trace::NodeTrace& trace, TimeUs from_us) {
  Measured sum;
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kCores || record.begin_us() < from_us) continue;
    const auto cores = record.as<trace::CoresTrace>();
    const auto us = static_cast<double>(record.end_us() - record.begin_us());
    sum.us += us;
    sum.busy_us += static_cast<double>(cores.busy_us), sum.own_us += static_cast<double>(cores.own_us);
    sum.core_us += us * cores.cores;
    sum.waited_us += static_cast<double>(cores.waited_us), sum.worker_us += us * cores.workers;
    sum.which |= cores.which;
  }
  return sum;
}

// By place in job.nodes.
std::vector<Measured> measured_on_all(const JobTrace& job, TimeUs from_us) {
  std::vector<Measured> nodes;
  for (const auto& node : job.nodes) nodes.push_back(measured_on(node.trace, from_us));
  for (const ThreadUse& use : thread_uses(job))
    if (use.thread == model::DaemonThread::kAll)
      for (std::size_t n = 0; n < nodes.size(); ++n)
        if (job.nodes[n].trace.header.node == use.node) nodes[n].daemon_us = use.share * nodes[n].us;
  return nodes;
}

double share_of(double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0; }

}  // namespace

bool CoreShares::is_short() const { return waiting >= kWaiting; }

std::vector<std::optional<CoreShares>> shares_of_cores(const JobTrace& job, TimeUs from_us) {
  const std::vector<Measured> nodes = measured_on_all(job, from_us);
  std::vector<std::optional<CoreShares>> shares(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const Measured& node = nodes[n];
    if (node.core_us <= 0) continue;
    double own_us = 0, daemon_us = 0;
    for (std::size_t other = 0; other < nodes.size(); ++other) {
      const bool is_same_host = job.nodes[other].trace.header.host == job.nodes[n].trace.header.host;
      if (nodes[other].us <= 0 || !is_same_host || (nodes[other].which & node.which) == 0) continue;
      const double times = node.us / nodes[other].us;  // the records may be of other times
      own_us += nodes[other].own_us * times, daemon_us += nodes[other].daemon_us * times;
    }
    shares[n] = {.others = share_of(node.busy_us - own_us, node.core_us),
                 .waiting = share_of(node.waited_us, node.worker_us),
                 .daemons = share_of(daemon_us, node.busy_us)};
  }
  return shares;
}

std::optional<double> taken_beyond(const std::vector<std::optional<CoreShares>>& shares, std::size_t node) {
  std::vector<double> others;
  for (std::size_t other = 0; other < shares.size(); ++other)
    if (other != node && shares[other]) others.push_back(shares[other]->others);
  if (others.empty() || !shares[node] || !shares[node]->is_short()) return std::nullopt;
  const double taken = shares[node]->others;
  return taken >= median(others) + kMuch ? std::optional(taken) : std::nullopt;
}

std::string note_of_other_programs(const JobTrace& job) {
  if (job.node_count() > job.nodes.size()) return "";
  const auto shares = shares_of_cores(job, 0);
  const auto lacks = [](const auto& use) { return use && use->is_short() && use->others >= kMuch; };
  const auto count = std::ranges::count_if(shares, lacks);
  if (count == 0) return "";
  const auto most =
      std::ranges::max_element(shares, {}, [&](const auto& use) { return lacks(use) ? use->others : -1; });
  const std::uint32_t node = job.nodes[static_cast<std::size_t>(most - shares.begin())].trace.header.node;
  std::string note = "other programs take " + percent((*most)->others) + " of the cores of node" + std::to_string(node);
  if (count > 1) note += ", and more than " + percent(kMuch) + " of those of " + std::to_string(count - 1) + " more";
  return note + ": neither workers nor daemons of this job";
}

}  // namespace deft::replay
