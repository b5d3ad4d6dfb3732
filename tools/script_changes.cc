#include "tools/script_changes.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/replay/quantiles.h"
#include "tools/flag_file.h"
#include "tools/traced_runs.h"

namespace deft::tools {
namespace {

constexpr std::size_t kMostLetters = 64;

double measured_us(const ScriptChange& change) { return replay::median(change.measured.steps_us); }

}  // namespace

Result<void> check_change(const std::string& name) {
  const auto fits = [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '-' || letter == '_'; };
  if (!name.empty() && name.size() <= kMostLetters && std::ranges::all_of(name, fits)) return {};
  return fail(ErrorKind::kInvalid, "--try is '" + name + "'",
              "give a name of up to 64 letters, digits, '-' and '_', for which the script asks deft.trying()");
}

Result<replay::MeasuredJob> measure_change(const std::string& name, const std::vector<std::string>& command) {
  auto runs = TracedRuns::begin("deft optimize --try");
  if (!runs) return tl::unexpected(runs.error());
  auto job = runs->run(command, {{"DEFT_TRY", name}});
  if (!job) return tl::unexpected(job.error());
  if (!std::filesystem::exists(runs->newest() / ("tried-" + name)))
    return fail(ErrorKind::kInvalid, "the script does not try '" + name + "', so its steps tell nothing of it",
                "let it ask deft.trying(\"" + name + "\") and do so then");
  return std::move(job->measured);
}

std::string change_words(const ScriptChange& as_is, const ScriptChange& changed) {
  char text[400];
  std::snprintf(text, sizeof text,
                "with %s, in %zu steps: compute %.1f ms instead of %.1f ms, a step %.1f ms instead of %.1f ms;\n"
                "  with the best settings of each, by replay, a step %.1f ms instead of %.1f ms",
                changed.name.c_str(), changed.measured.steps_us.size(), changed.measured.profile.compute_us() / 1000,
                as_is.measured.profile.compute_us() / 1000, measured_us(changed) / 1000, measured_us(as_is) / 1000,
                changed.found.step_us / 1000, as_is.found.step_us / 1000);
  std::string words = text;
  const OptionValues options = changed.found.settings.options(changed.found.traced);
  if (changed.found.worth_it() && !options.empty()) words += ": " + as_variables(options);
  return words;
}

nlohmann::json change_json(const ScriptChange& changed) {
  return {{"name", changed.name},
          {"steps", changed.measured.steps_us.size()},
          {"compute_us", changed.measured.profile.compute_us()},
          {"measured_step_us", measured_us(changed)},
          {"step_us", changed.found.step_us},
          {"error", changed.found.error},
          {"worth_it", changed.found.worth_it()},
          {"options", changed.found.settings.options(changed.found.traced)}};
}

}  // namespace deft::tools
