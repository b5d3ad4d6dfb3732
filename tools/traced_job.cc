#include "tools/traced_job.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "core/replay/traced_codec.h"

namespace deft::tools {
namespace {

void name_problems(const std::string& command, const std::vector<std::string>& problems) {
  for (const auto& problem : problems) std::fprintf(stderr, "%s: %s\n", command.c_str(), problem.c_str());
}

}  // namespace

Result<replay::JobTrace> read_traces(const std::string& command, const std::string& folder) {
  auto trace = replay::read_job(folder);
  if (trace) name_problems(command, trace->problems);
  return trace;
}

Result<TracedJob> read_traced_job(const std::string& command, const std::string& folder) {
  auto trace = replay::read_job(folder);
  if (!trace) return tl::unexpected(trace.error());
  auto measured = replay::measure(*trace);
  if (!measured) return tl::unexpected(measured.error());  // it names the trace's problems
  name_problems(command, trace->problems);
  name_problems(command, measured->problems);
  replay::price_plan_codecs(*measured);
  return TracedJob{*std::move(trace), *std::move(measured)};
}

}  // namespace deft::tools
