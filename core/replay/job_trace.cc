#include "core/replay/job_trace.h"

#include <algorithm>
#include <compare>
#include <filesystem>
#include <map>
#include <utility>

#include "core/model/job_names.h"
#include "core/replay/segments.h"
#include "core/replay/trace_limits.h"

namespace deft::replay {
namespace {

constexpr std::size_t kMostNamed = 8;  // missing nodes

using Key = std::pair<std::string, std::uint64_t>;  // a job, and its incarnation

Key key_of(const trace::TraceHeader& header) { return {header.job, header.incarnation}; }

// Process sets write into the folder of the job that they belong to. Without its files they count as jobs of their own.
bool is_set_of_another(const trace::TraceHeader& header, const std::vector<trace::TraceHeader>& headers) {
  const std::string job = model::job_of_set(header.job);
  return !job.empty() && std::ranges::find(headers, job, &trace::TraceHeader::job) != headers.end();
}

// Which run counts. A run of a process set does not, if its job is here. A run with the leader's file comes before a run without it. Then
// the newest run counts, by the leader's clock of day, or by that of any file if the leader's is missing. Of runs of one age, as all runs
// of older versions are, the run with most nodes counts. An incarnation is random, so it tells nothing of age.
Key newest_run(const std::vector<trace::TraceHeader>& headers) {
  struct Run {
    bool has_leader = false;
    std::uint64_t begun_s = 0;
    std::size_t nodes = 0;
    auto operator<=>(const Run&) const = default;
  };
  std::map<Key, Run> runs;
  for (const auto& header : headers) {
    if (is_set_of_another(header, headers)) continue;
    Run& run = runs[key_of(header)];
    const bool is_leader = header.node == 0;
    if (is_leader || !run.has_leader) run.begun_s = is_leader ? header.begun_s : std::max(run.begun_s, header.begun_s);
    run.has_leader = run.has_leader || is_leader;
    ++run.nodes;
  }
  return std::ranges::max_element(runs, {}, [](const auto& entry) { return entry.second; })->first;
}

std::string why_left_out(const trace::TraceHeader& header, const std::string& counted) {
  if (header.job == counted) return " is of another run of the job, and is left out";
  return " is of the job '" + header.job + "', and is left out beside '" + counted +
         "': give a folder with its files alone to look at it";
}

std::vector<ClockSample> samples_of(const trace::NodeTrace& trace) {
  std::vector<ClockSample> samples;
  for (const auto& record : trace.records)
    if (record.kind() == trace::TraceKind::kClock)
      samples.push_back({record.begin_us(), record.as<trace::ClockTrace>().leader_us, record.end_us()});
  return samples;
}

Interval interval_of(const trace::NodeTrace& trace) {
  Interval interval;
  for (const auto& record : trace.records)
    if (!trace::may_be_older(record.kind()))
      interval = {std::min(interval.begin_us, record.begin_us()), std::max(interval.end_us, record.end_us())};
  return interval;
}

// What the leader's trace tells of each other node's clock, by the place of the node's trace.
std::vector<std::vector<ClockBound>> bounds_by_leader(const std::vector<trace::NodeTrace>& traces, const Key& key) {
  std::vector<std::vector<ClockBound>> bounds(traces.size());
  const auto is_of = [&](const trace::NodeTrace& trace) { return key_of(trace.header) == key; };
  const auto leader = std::ranges::find_if(
      traces, [&](const trace::NodeTrace& trace) { return is_of(trace) && trace.header.node == 0; });
  if (leader == traces.end()) return bounds;
  for (std::size_t i = 0; i < traces.size(); ++i)
    if (is_of(traces[i]) && traces[i].header.node != 0) bounds[i] = clock_bounds(traces[i], *leader);
  return bounds;
}

Result<AlignedNode> aligned(trace::NodeTrace trace, std::span<const ClockBound> bounds) {
  AlignedNode node{std::move(trace), {}};
  if (node.trace.header.node == 0) return node;
  auto clock = align(samples_of(node.trace), interval_of(node.trace), bounds);
  if (!clock) return tl::unexpected(clock.error());
  node.clock = *clock;
  for (auto& record : node.trace.records) {
    const TimeUs begin_us = node.clock.to_leader(record.begin_us());
    record = record.at(begin_us, std::max(begin_us, node.clock.to_leader(record.end_us())));
  }
  return node;
}

// Leaves out records that no computer could have made. Returns the faults of the trace.
std::vector<std::string> limited(trace::NodeTrace& trace, std::size_t most_entries) {
  std::vector<std::string> problems = trace.problems;
  if (trace.lost > 0) problems.push_back(std::to_string(trace.lost) + " records were not written");
  if (std::string problem = limit_work(trace, most_entries); !problem.empty()) problems.push_back(std::move(problem));
  return problems;
}

std::string jumps(const ClockMap& clock) {
  return ": " + std::to_string(clock.contradicting) +
         " answers of the leader's clock contradict the others, and do not count: a clock may have jumped";
}

// Dumps of a node may be older than the leader's: it could not write a newer one.
void leave_out_other_times(std::map<std::uint32_t, AlignedNode>& nodes, std::vector<std::string>& problems) {
  const auto leader = nodes.find(0);
  if (leader == nodes.end()) return;
  const Interval of_leader = interval_of(leader->second.trace);
  std::erase_if(nodes, [&](const auto& node) {
    const Interval own = interval_of(node.second.trace);
    if (own.is_empty() || of_leader.is_empty() || own.overlaps(of_leader)) return false;
    problems.push_back("node " + std::to_string(node.first) +
                       " is left out: its events are of another time than the leader's");
    return true;
  });
}

// "the trace of node 2 is missing".
std::string missing_nodes(const std::map<std::uint32_t, AlignedNode>& nodes, std::uint32_t expected) {
  std::string numbers;
  std::uint32_t missing = 0;
  for (std::uint32_t node = 0; node < expected && missing <= kMostNamed; ++node) {
    if (nodes.contains(node)) continue;
    if (++missing <= kMostNamed) numbers += (numbers.empty() ? "" : ", ") + std::to_string(node);
  }
  const std::size_t all = expected - nodes.size();
  if (all == 1) return "the trace of node " + numbers + " is missing";
  return "of " + std::to_string(expected) + " nodes the traces of " + std::to_string(all) + " are missing: " + numbers +
         (all > kMostNamed ? ", ..." : "");
}

Result<std::filesystem::directory_iterator> files_in(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  if (!error) return files;
  return fail(ErrorKind::kInvalid, "cannot read the folder " + folder + ": " + error.message(),
              "give the folder that DEFT_TRACE named");
}

Result<std::vector<std::string>> paths_of_traces(const std::string& folder) {
  const auto files = files_in(folder);
  if (!files) return tl::unexpected(files.error());
  std::vector<std::string> paths;
  for (const auto& entry : *files)
    if (entry.path().extension() == ".trace") paths.push_back(entry.path().string());
  if (paths.empty())
    return fail(ErrorKind::kInvalid, "the folder " + folder + " has no file NAME.trace",
                "train with DEFT_TRACE=" + folder + ", and copy the files of all nodes into one folder");
  std::ranges::sort(paths);
  return paths;
}

std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// The files of the run that counts. The files of other runs are not read, because reading them would take time and memory.
std::vector<std::string> of_newest_run(std::vector<std::string> paths, std::vector<std::string>& problems) {
  std::vector<trace::TraceHeader> headers;
  std::erase_if(paths, [&](const std::string& path) {
    auto glance = trace::glance_at_trace(path);
    if (glance)
      headers.push_back(std::move(glance->header));
    else
      problems.push_back(glance.error().message());
    return !glance;
  });
  if (paths.empty()) return paths;
  const Key key = newest_run(headers);
  std::vector<std::string> counted;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (key_of(headers[i]) == key)
      counted.push_back(std::move(paths[i]));
    else
      problems.push_back(name_of(paths[i]) + why_left_out(headers[i], key.first));
  }
  return counted;
}

}  // namespace

Result<JobTrace> join_nodes(std::vector<trace::NodeTrace> traces, const std::vector<std::string>& names) {
  if (traces.empty()) return fail(ErrorKind::kInvalid, "there is no trace");
  std::vector<trace::TraceHeader> headers;
  for (const auto& trace : traces) headers.push_back(trace.header);
  const Key key = newest_run(headers);
  JobTrace job;
  std::map<std::uint32_t, AlignedNode> nodes;
  std::uint32_t expected = 0;
  const auto bounds = bounds_by_leader(traces, key);
  for (std::size_t i = 0; i < traces.size(); ++i) {
    if (key_of(traces[i].header) != key) {
      job.problems.push_back(names[i] + why_left_out(traces[i].header, key.first));
      continue;
    }
    for (const auto& problem : limited(traces[i], kMostEntries / traces.size()))
      job.problems.push_back(names[i] + ": " + problem);
    const std::uint32_t number = traces[i].header.node;
    expected = std::max(expected, traces[i].header.nodes);
    auto node = aligned(std::move(traces[i]), bounds[i]);
    if (node && node->clock.contradicting > 0) job.problems.push_back(names[i] + jumps(node->clock));
    if (!node)
      job.problems.push_back(names[i] + " is left out: " + node.error().message());
    else if (!nodes.emplace(number, std::move(*node)).second)
      job.problems.push_back(names[i] + " is left out: node " + std::to_string(number) + " has two files");
  }
  leave_out_other_times(nodes, job.problems);
  if (nodes.size() < expected) job.problems.push_back(missing_nodes(nodes, expected));
  if (nodes.empty()) return fail(ErrorKind::kInvalid, "no node's trace can be used", job.problems.front());
  for (auto& [number, node] : nodes) job.nodes.push_back(std::move(node));
  return job;
}

Result<void> check_folder(const std::string& folder) {
  if (const auto files = files_in(folder); !files) return tl::unexpected(files.error());
  return {};
}

Result<JobTrace> read_job(const std::string& folder) {
  auto paths = paths_of_traces(folder);
  if (!paths) return tl::unexpected(paths.error());
  std::vector<std::string> problems;
  *paths = of_newest_run(std::move(*paths), problems);
  std::vector<trace::NodeTrace> traces;
  std::vector<std::string> names;
  for (const auto& path : *paths) {
    auto trace = trace::read_trace(path, kMostJobRecords / paths->size());
    if (!trace) {
      problems.push_back(trace.error().message());
      continue;
    }
    traces.push_back(std::move(*trace));
    names.push_back(name_of(path));
  }
  if (traces.empty()) return fail(ErrorKind::kInvalid, "no trace in " + folder + " can be read", problems.front());
  auto job = join_nodes(std::move(traces), names);
  if (job) job->problems.insert(job->problems.begin(), problems.begin(), problems.end());
  return job;
}

}  // namespace deft::replay
