// deft report DIR -o FILE.html: one page about a traced job, which needs no network.
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/quantities.h"
#include "tools/command.h"
#include "tools/report_data.h"
#include "tools/report_page.h"
#include "tools/traced_job.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft report DIR [-o FILE.html] [--with OTHER] [--budget 20s]\n"
    "\n"
    "Writes one page about the job whose traces (DEFT_TRACE=DIR) are in DIR, by default to DIR/report.html: why it is "
    "as slow as it "
    "is,\n"
    "its timeline and critical path, its layers and parts, its links over time, and what would change its step time. A "
    "browser opens "
    "it\n"
    "without a network. --with compares the job with the one whose traces are in OTHER. --budget: for the replays of "
    "what if.\n";

struct ReportOptions {
  std::string folder, output, other;
  TimeUs budget_us = 20'000'000;
};

constexpr std::array<std::string_view, 4> kFlags = {"-o", "--output", "--with", "--budget"};

Result<ReportOptions> parse(Arguments arguments) {
  ReportOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (std::ranges::find(kFlags, argument) != kFlags.end()) {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, argument + " needs a value", "see deft report --help");
      if (argument == "--budget") {
        const auto us = parse_duration(argument, arguments[i]);
        if (!us) return tl::unexpected(us.error());
        options.budget_us = *us;
      } else {
        (argument == "--with" ? options.other : options.output) = arguments[i];
      }
    } else if (!argument.starts_with("-") && options.folder.empty()) {
      options.folder = argument;
    } else {
      return unknown_argument("report", argument, kFlags);
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft report --help");
  if (options.output.empty()) options.output = options.folder + "/report.html";
  return options;
}

struct Explained {
  TracedJob job;
  replay::Explanation explanation;
};

Result<Explained> explained(const std::string& folder) {
  auto job = read_traced_job("deft report", folder);
  if (!job) return tl::unexpected(job.error());
  auto explanation = replay::explain(job->trace, job->measured);
  if (!explanation) return tl::unexpected(explanation.error());
  return Explained{*std::move(job), *std::move(explanation)};
}

// The job with which the page compares.
Result<nlohmann::json> other_of(const std::string& folder) {
  const auto other = explained(folder);
  if (!other) return tl::unexpected(other.error());
  nlohmann::json data = report_data(other->job, other->explanation);
  data["folder"] = folder;
  for (const char* const large : {"timeline", "drawn", "path", "traffic", "threads", "tensors"}) data.erase(large);
  return data;
}

}  // namespace

Result<void> write_report(const TracedJob& job, const replay::Explanation& explanation, const std::string& folder,
                          TimeUs budget_us, const std::string& file, const nlohmann::json& other) {
  nlohmann::json data = report_data(job, explanation);
  data["folder"] = folder;
  data["what_if"] = what_if_grid(job.measured, budget_us);
  if (!other.is_null()) data["other"] = other;
  return write_text(file, report_page(data));
}

Result<int> run_report(Arguments arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  if (auto ok = replay::check_folder(options->folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_output(options->output); !ok) return tl::unexpected(ok.error());
  const auto job = explained(options->folder);
  if (!job) return tl::unexpected(job.error());
  nlohmann::json other;
  if (!options->other.empty()) {
    auto data = other_of(options->other);
    if (!data) return tl::unexpected(data.error());
    other = *std::move(data);
  }
  if (auto ok = write_report(job->job, job->explanation, options->folder, options->budget_us, options->output, other);
      !ok)
    return tl::unexpected(ok.error());
  std::printf("%s\n", options->output.c_str());
  return kExitOk;
}

}  // namespace deft::tools
