// deft explain DIR: why the traced job is as slow as it is.
#include <cstdio>
#include <filesystem>
#include <utility>

#include "core/replay/explain.h"
#include "tools/command.h"
#include "tools/daemon_request.h"
#include "tools/explanation_words.h"
#include "tools/report_page.h"
#include "tools/trace_control.h"
#include "tools/traced_job.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft explain DIR [--json] [--html FILE]\n"
    "       deft explain --live [JOB] [--json] [--html FILE] [--socket PATH]\n"
    "\n"
    "Says why the job whose traces (DEFT_TRACE=DIR, or deft trace dump) are in DIR is as slow as it is: first what "
    "wins most if\n"
    "it is mended, by replay, and then where the time of a step goes on the critical path over all nodes.\n"
    "--live takes the newest events of a running job, on the node of rank 0. Other nodes count if they write to the "
    "same folder.\n"
    "--html also writes the page of deft report, without its replays of what if.\n";

void print_causes(const replay::Explanation& explanation) {
  for (const auto& cause : explanation.causes) {
    std::printf("%s", cause.what.c_str());
    if (cause.gain_us > 0)
      std::printf(": mending it saves %.1f ms of a step's %.1f ms (%.0f %%)", cause.gain_us / 1000,
                  cause.gain_us / std::max(cause.share, 1e-9) / 1000, 100 * cause.share);
    std::printf("\n");
    for (const auto& [name, value] : cause.options) std::printf("  %s = %s\n", name.c_str(), value.c_str());
  }
  if (!explanation.doubt.empty()) std::printf("%s\n", explanation.doubt.c_str());
}

void print_shares(const replay::Explanation& explanation) {
  const auto& shares = explanation.shares;
  std::printf("\nwhere a step's time goes, on the critical path over all nodes (mean of %zu steps: %.1f ms)\n",
              shares.steps, shares.step_us() / 1000);
  for (const auto& [share, name] : kShareNames) {
    const double us = shares.*share;
    std::printf("  %-28s %8.1f ms %5.0f %%\n", name, us / 1000, 100 * us / std::max(1.0, shares.step_us()));
  }
  std::printf("median step: %.1f ms; replay predicts %.1f ms (%+.1f %%)\n", explanation.measured_step_us / 1000,
              explanation.replayed_step_us / 1000,
              100 * (explanation.replayed_step_us / explanation.measured_step_us - 1));
}

void print_notes(const replay::Explanation& explanation) {
  for (const auto& note : explanation.notes) std::printf("%s\n", note.c_str());
}

void print_decisions(const replay::MeasuredJob& measured) {
  if (measured.decisions.empty()) return;
  std::printf("policies in the traced steps\n");
  for (const auto& decision : measured.decisions) std::printf("  %s\n", decision.c_str());
}

Result<std::string> given_folder(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 || arguments.front().starts_with("-"))
    return fail(ErrorKind::kInvalid, "give the folder of the traces, and no more", "see deft explain --help");
  return arguments.front();
}

// Where the newest events of the running job lie.
Result<std::string> dumped_folder(const std::vector<std::string>& arguments) {
  const DaemonArguments given = split_arguments(arguments);
  if (given.words.size() > 1)
    return fail(ErrorKind::kInvalid, "'" + given.words[1] + "' is too much", "see deft explain --help");
  const auto config = load_config(given.flags);
  if (!config) return tl::unexpected(config.error());
  const auto path = dump_trace(*config, given.words.empty() ? "" : given.words.front());
  if (!path) return tl::unexpected(path.error());
  return std::filesystem::path(*path).parent_path().string();
}

// A busy job fills the ring in less than the steps that replay needs.
tl::unexpected<Error> unexplained(Error error, bool live) {
  if (live)
    error.fix = "the newest 65,536 events may be too few: deft trace start DIR --steps 20, then deft explain DIR";
  return tl::unexpected(std::move(error));
}

}  // namespace

Result<int> run_explain(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  if (take_flag(arguments, "--help") || take_flag(arguments, "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const bool json = take_flag(arguments, "--json");
  const bool live = take_flag(arguments, "--live");
  const auto html = take_value(arguments, "--html");
  if (html && html->empty())
    return fail(ErrorKind::kInvalid, "--html needs the name of a file", "see deft explain --help");
  if (html)
    if (auto ok = check_output(*html); !ok) return tl::unexpected(ok.error());
  const auto folder = live ? dumped_folder(arguments) : given_folder(arguments);
  if (!folder) return tl::unexpected(folder.error());
  const auto job = read_traced_job("deft explain", *folder);
  if (!job) return unexplained(job.error(), live);
  const auto explanation = replay::explain(job->trace, job->measured);
  if (!explanation) return tl::unexpected(explanation.error());
  if (html)
    if (auto ok = write_report(*job, *explanation, *folder, 0, *html); !ok) return tl::unexpected(ok.error());
  if (json) {
    put_json(causes_json(*explanation));
    return kExitOk;
  }
  print_causes(*explanation);
  print_shares(*explanation);
  print_notes(*explanation);
  print_decisions(job->measured);
  return kExitOk;
}

}  // namespace deft::tools
