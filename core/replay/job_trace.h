// The traces of all nodes of a job, with all times on the clock of the leader (node 0).
//
//   auto job = read_job("traces/");      // files NAME.trace of `DEFT_TRACE=traces/`
//   for (const AlignedNode& node : job->nodes) node.trace.records ...
//   for (const std::string& problem : job->problems) warn(problem);
//
// The reader uses all that it can, and names the rest in `problems`: a damaged or missing file, files of another job in the same
// folder, a node whose clock cannot be aligned. The newest run counts whose leader's trace is there. A run of a process set counts only
// if the folder has no run of its job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/replay/clock_alignment.h"
#include "core/trace/trace_file.h"

namespace deft::replay {

struct AlignedNode {
  trace::NodeTrace trace;  // its records have the leader's clock, in the order of their begin
  ClockMap clock;          // how they were moved
};

struct JobTrace {
  std::vector<AlignedNode> nodes;  // ascending
  std::vector<std::string> problems;

  // All nodes of the job count, also those whose traces are not here.
  [[nodiscard]] std::uint32_t node_count() const {
    std::uint32_t count = 1;
    for (const AlignedNode& node : nodes) count = std::max(count, node.trace.header.nodes);
    return count;
  }
  [[nodiscard]] const AlignedNode* leader() const {
    return !nodes.empty() && nodes.front().trace.header.node == 0 ? &nodes.front() : nullptr;
  }
};

// All files of the run that counts have together at most so many records in memory (1 GB), each the same share.
inline constexpr std::size_t kMostJobRecords = 16U << 20U;

// kInvalid if it is no folder that can be read. Commands that write into the folder of the traces ask it first.
Result<void> check_folder(const std::string& folder);

// kInvalid if the folder has no usable trace.
Result<JobTrace> read_job(const std::string& folder);
// The same, of traces that are read already; `names` has the file of each.
Result<JobTrace> join_nodes(std::vector<trace::NodeTrace> traces, const std::vector<std::string>& names);

}  // namespace deft::replay
