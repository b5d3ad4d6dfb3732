// A trace may come from anywhere, and a few of its records may stand for more than a computer can do.
//
//   if (const std::string problem = limit_work(trace, kMostEntries / files); !problem.empty()) ...
//
// Afterwards readers of its records take seconds, and memory in proportion to the records.
#pragma once

#include <cstddef>
#include <string>

#include "core/trace/trace_file.h"

namespace deft::replay {

// The limit for all files of a job together.
inline constexpr std::size_t kMostEntries = 256U << 20U;

// A gradient's record may stand for all tensors and buckets of its group, and each step has a time for each bucket. Records behind the
// first `most` of these entries are left out, and the result says so; it is empty if there are none.
std::string limit_work(trace::NodeTrace& trace, std::size_t most);

}  // namespace deft::replay
