// deft report DIR -o FILE.html: one page about a traced job, which needs no network.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

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

Result<ReportOptions> parse(Arguments arguments) {
  ReportOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-o" || argument == "--output" || argument == "--with" || argument == "--budget") {
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
      return fail(ErrorKind::kInvalid, "unknown argument '" + argument + "'", "see deft report --help");
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft report --help");
  if (options.output.empty()) options.output = options.folder + "/report.html";
  return options;
}

Result<nlohmann::json> data_of(const std::string& folder, std::optional<TimeUs> budget_us) {
  const auto job = read_traced_job("deft report", folder);
  if (!job) return tl::unexpected(job.error());
  const auto explanation = replay::explain(job->trace, job->measured);
  if (!explanation) return tl::unexpected(explanation.error());
  nlohmann::json data = report_data(*job, *explanation);
  data["folder"] = folder;
  if (budget_us) data["what_if"] = what_if_grid(job->measured, *budget_us);
  return data;
}

}  // namespace

Result<int> run_report(Arguments arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  auto data = data_of(options->folder, options->budget_us);
  if (!data) return tl::unexpected(data.error());
  if (!options->other.empty()) {
    auto other = data_of(options->other, std::nullopt);
    if (!other) return tl::unexpected(other.error());
    for (const char* const large : {"timeline", "path", "traffic", "tensors"}) other->erase(large);
    (*data)["other"] = *std::move(other);
  }
  std::ofstream out(options->output);
  out << report_page(*data);
  if (!out.flush()) return fail(ErrorKind::kInvalid, "cannot write " + options->output);
  std::printf("%s\n", options->output.c_str());
  return kExitOk;
}

}  // namespace deft::tools
