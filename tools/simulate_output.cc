#include "tools/simulate_output.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/model/events.h"
#include "tools/command.h"

namespace deft::tools {
namespace {

template <typename... T>
std::string format(const char* pattern, T... values) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

}  // namespace

void print_table(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs) {
  out << profile.model << ": compute " << format("%.1f ms", profile.compute_us() / 1e3) << ", "
      << profile.buckets.size() << " buckets, links";
  for (const auto& link : profile.links) out << " " << link.name;
  out << "\n\n"
      << "policy             step ms  bubble ms  speedup  updates/step  staleness  merged  period  MB/step  on wire  "
         "solve ms\n";
  for (const auto& run : runs) {
    const auto& o = run.outcome;
    out << format("%-16s %9.2f  %9.2f  %6.2fx  %12.3f  %9" PRIu64 "  %6" PRIu64 "  %6" PRIu64 "  %7.1f  %7.1f  %8.2f\n",
                  run.policy.c_str(), o.step_us / 1e3, o.bubble_us / 1e3,
                  runs.front().outcome.step_us / std::max(1e-9, o.step_us), o.updates_per_step, o.max_staleness_steps,
                  o.max_merged_steps, o.period_steps, o.bytes_per_step / 1e6, o.wire_bytes_per_step / 1e6,
                  run.solve_us / 1e3);
  }
  out << "\nspeedup: over " << runs.front().policy << "; staleness and merged: most, in steps; steady state\n";
}

void print_json(const std::vector<PolicyRun>& runs) {
  auto list = nlohmann::json::array();
  for (const auto& run : runs)
    list.push_back({{"policy", run.policy},
                    {"step_us", run.outcome.step_us},
                    {"compute_us", run.outcome.compute_us},
                    {"bubble_us", run.outcome.bubble_us},
                    {"updates_per_step", run.outcome.updates_per_step},
                    {"max_staleness_steps", run.outcome.max_staleness_steps},
                    {"period_steps", run.outcome.period_steps},
                    {"solve_us", run.solve_us},
                    {"bytes_per_step", run.outcome.bytes_per_step},
                    {"wire_bytes_per_step", run.outcome.wire_bytes_per_step}});
  put_json(list);
}

void write_events(std::ostream& out, const PolicyRun& run) {
  std::vector<std::string> buckets;
  std::vector<std::string> links;
  for (const auto& bucket : run.profile.buckets) buckets.push_back(bucket.name);
  for (const auto& link : run.profile.links) links.push_back(link.name);
  for (const auto& event : model::events_of(run.outcome.timeline, run.policy, buckets, links))
    out << model::event_line(event) << '\n';
}

}  // namespace deft::tools
