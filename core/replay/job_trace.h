// The traces of all nodes of a job, with all times on the clock of the leader (node 0).
//
//   auto job = read_job("traces/");      // files NAME.trace of `DEFT_TRACE=traces/`
//   for (const AlignedNode& node : job->nodes) node.trace.records ...
//   for (const std::string& problem : job->problems) warn(problem);
//
// The reader uses all that it can, and names the rest in `problems`: a damaged or missing file, files of another job in the same
// folder, a node whose clock cannot be aligned. The newest run whose leader is there counts, and one of a process set only if its job is
// not there.
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

  // Of the job, whether or not their traces are here.
  [[nodiscard]] std::uint32_t node_count() const {
    std::uint32_t count = 1;
    for (const AlignedNode& node : nodes) count = std::max(count, node.trace.header.nodes);
    return count;
  }
  [[nodiscard]] const AlignedNode* leader() const {
    return !nodes.empty() && nodes.front().trace.header.node == 0 ? &nodes.front() : nullptr;
  }
};

// All files of a folder together have at most so many records in memory (1 GB), each the same share.
inline constexpr std::size_t kMostJobRecords = 16U << 20U;

// kInvalid if the folder has no usable trace.
Result<JobTrace> read_job(const std::string& folder);
// The same, of traces that are read already; `names` has the file of each.
Result<JobTrace> join_nodes(std::vector<trace::NodeTrace> traces, const std::vector<std::string>& names);

}  // namespace deft::replay
