// The traces that a command reads. What cannot be used of them is named on the error output, and the rest is used.
//
//   const auto trace = read_traces("deft trace", folder);
//   const auto job = read_traced_job("deft replay", folder);   // measured, too
#pragma once

#include <string>

#include "core/replay/measured_job.h"

namespace deft::tools {

struct TracedJob {
  replay::JobTrace trace;
  replay::MeasuredJob measured;
};

// `command` begins each line about what is wrong. Errors as replay::read_job has them.
Result<replay::JobTrace> read_traces(const std::string& command, const std::string& folder);

// Errors also as replay::measure has them.
Result<TracedJob> read_traced_job(const std::string& command, const std::string& folder);

}  // namespace deft::tools
