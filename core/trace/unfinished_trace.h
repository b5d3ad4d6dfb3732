// Which file of a trace is still being written. Each node finishes its own in the background, after the trace was stopped.
//
//   while (!unfinished_trace(path)->empty()) wait();     // `path`: the file of one node
//
// Files beside it that are of the same run of the job belong to the trace: nodes may share a disk. Blocks on the disk.
#pragma once

#include <string>

#include "core/base/status.h"

namespace deft::trace {

// The path of one of them; empty: all are complete. kInvalid if the file at `path` cannot be read.
Result<std::string> unfinished_trace(const std::string& path);

}  // namespace deft::trace
