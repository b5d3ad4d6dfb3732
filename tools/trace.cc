#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>

#include "core/replay/job_timeline.h"
#include "tools/command.h"
#include "tools/trace_control.h"
#include "tools/trace_output.h"
#include "tools/traced_job.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft trace merge DIR [-o FILE] [--chrome]\n"
    "       deft trace dump [JOB] [--socket PATH]\n"
    "       deft trace start DIR [JOB] [--steps N] [--socket PATH]\n"
    "       deft trace stop [JOB] [--socket PATH]\n"
    "\n"
    "merge puts the traces of all nodes (DEFT_TRACE=DIR) on one clock, and writes them to FILE, by default "
    "DIR/merged.perfetto-trace,\n"
    "which opens in ui.perfetto.dev. --chrome writes JSON, by default DIR/merged.json.\n"
    "\n"
    "The others are for a running job, on the node of rank 0. Each node of the job writes a file of its own.\n"
    "dump writes the newest events into the state folder of each daemon, and says where that is here.\n"
    "start writes all events to DIR, as DEFT_TRACE=DIR does, for N steps or until stop.\n"
    "stop returns when the files that this node can see are complete.\n"
    "JOB may be left out if the daemon has one job of yours.\n";

struct MergeOptions {
  std::string folder;
  std::string output;
  bool chrome = false;
};

constexpr std::array<std::string_view, 3> kFlags = {"--chrome", "-o", "--output"};

Result<MergeOptions> parse_merge(Arguments arguments) {
  MergeOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--chrome") {
      options.chrome = true;
    } else if (argument == "-o" || argument == "--output") {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, argument + " needs the name of a file", "see deft trace --help");
      options.output = arguments[i];
    } else if (!argument.starts_with("-") && options.folder.empty()) {
      options.folder = argument;
    } else {
      return unknown_argument("trace", argument, kFlags);
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft trace --help");
  if (options.output.empty())
    options.output = options.folder + (options.chrome ? "/merged.json" : "/merged.perfetto-trace");
  return options;
}

void describe_clocks(const replay::JobTrace& job) {
  for (const auto& node : job.nodes) {
    const auto& clock = node.clock;
    if (clock.samples == 0) continue;
    std::printf(
        "node %u (%s): clock is %+.6f s off the leader's, drifts %+.2f ppm, aligned within %.0f us by %zu answers%s\n",
        node.trace.header.node, node.trace.header.host.c_str(),
        -(static_cast<double>(clock.offset_us) + clock.correction_us) / 1e6, -clock.drift * 1e6, clock.error_us,
        clock.samples, clock.bounds > 0 ? " and the data that was sent" : "");
  }
}

Result<int> merge(Arguments arguments) {
  const auto options = parse_merge(arguments);
  if (!options) return tl::unexpected(options.error());
  if (auto ok = replay::check_folder(options->folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_output(options->output); !ok) return tl::unexpected(ok.error());
  const auto job = read_traces("deft trace", options->folder);
  if (!job) return tl::unexpected(job.error());
  const auto timeline = replay::make_timeline(*job, replay::Detail::kSegments);
  const auto write = [&](std::ostream& out) {
    if (options->chrome)
      write_chrome(out, timeline);
    else
      write_perfetto(out, timeline);
  };
  if (auto ok = write_file(options->output, write); !ok) return tl::unexpected(ok.error());
  describe_clocks(*job);
  std::printf("%zu node%s, %zu slices on %zu tracks: %s\n", job->nodes.size(), job->nodes.size() == 1 ? "" : "s",
              timeline.slices.size(), timeline.tracks.size(), options->output.c_str());
  return kExitOk;
}

}  // namespace

Result<int> run_trace(Arguments arguments) {
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool help = std::ranges::any_of(arguments, is_help);
  if (!help && !arguments.empty() && arguments.front() == "merge") return merge(arguments.subspan(1));
  if (!help && !arguments.empty() && !arguments.front().starts_with("-")) return control_trace(arguments);
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? kExitOk : kExitUsage;
}

}  // namespace deft::tools
