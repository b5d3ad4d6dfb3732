// deft optimize DIR: settings with which the traced job would be faster.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/base/clock.h"
#include "core/base/quantities.h"
#include "core/compress/registry.h"
#include "core/optimize/memory_fit.h"
#include "core/optimize/search.h"
#include "core/replay/traced_codec.h"
#include "tools/command.h"
#include "tools/optimize_memory.h"
#include "tools/traced_job.h"
#include "tools/verify.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft optimize DIR [--budget 60s] [--policy NAME] [--running] [--compression CODEC ...]\n"
    "                         [--memory SIZE] [-o FILE] [--json] [--verify COMMAND ...]\n"
    "\n"
    "Looks for a policy, a bucketing and sizes with which the job whose traces (DEFT_TRACE=DIR) are in DIR would be "
    "faster, by\n"
    "replay, for at most as long as the budget. Updates stay those of plain data-parallel training. If it finds some, "
    "it writes\n"
    "them to FILE, by default DIR/optimized.flags, which DEFT_FLAG_FILE takes.\n"
    "--policy looks at that policy alone. --running keeps the buckets, which a running job cannot change (deft set).\n"
    "--compression, once or more, lets gradients be encoded so if that wins more than 2 %.\n"
    "--memory 8GB: if a worker needs more, the job is to accumulate gradients or to recompute activations, whichever "
    "is "
    "faster;\n"
    "the script must do that, and the settings are looked for with it.\n"
    "--verify runs COMMAND, which starts the job, twice as it is and twice with the settings found. If it is not "
    "faster "
    "by more\n"
    "than runs differ, no file is written.\n";

struct OptimizeOptions {
  std::string folder;
  std::string output;
  TimeUs budget_us = 60'000'000;
  bool json = false;
  std::string policy;                // that may be chosen; empty: all exact ones
  bool running = false;              // only what can change in a running job
  std::vector<std::string> codecs;   // that may be chosen
  std::uint64_t memory = 0;          // of a worker, at most; 0: it does not matter
  std::vector<std::string> command;  // that starts the job; empty: nothing is verified
};

Result<void> check_policy(const std::string& policy) {
  const auto known = optimize::exact_policies();
  if (policy.empty() || std::ranges::find(known, policy) != known.end()) return {};
  std::string listed;
  for (const auto& name : known) listed += (listed.empty() ? "" : " ") + name;
  return fail(ErrorKind::kInvalid, "--policy is '" + policy + "', which is no policy whose settings are looked for",
              "one of " + listed);
}

Result<void> parse_value(const std::string& flag, const std::string& value, OptimizeOptions& options) {
  if (flag == "--compression") {
    if (const auto codec = compress::make_codec(value); !codec) return tl::unexpected(codec.error());
    options.codecs.push_back(value);
  } else if (flag == "--memory") {
    const auto bytes = parse_size(flag, value);
    if (!bytes) return tl::unexpected(bytes.error());
    options.memory = *bytes;
  } else if (flag == "--budget") {
    const auto budget_us = parse_duration(flag, value);
    if (!budget_us) return tl::unexpected(budget_us.error());
    options.budget_us = *budget_us;
  } else {
    (flag == "--policy" ? options.policy : options.output) = value;
  }
  return {};
}

Result<OptimizeOptions> parse(Arguments arguments) {
  OptimizeOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--running") {
      options.running = true;
    } else if (argument == "--budget" || argument == "-o" || argument == "--output" || argument == "--policy" ||
               argument == "--compression" || argument == "--memory") {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, argument + " needs a value", "see deft optimize --help");
      if (auto ok = parse_value(argument, arguments[i], options); !ok) return tl::unexpected(ok.error());
    } else if (argument == "--verify") {
      options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
      if (options.command.empty())
        return fail(ErrorKind::kInvalid, "--verify needs the command that starts the job", "see deft optimize --help");
      break;
    } else if (!argument.starts_with("-") && options.folder.empty()) {
      options.folder = argument;
    } else {
      return fail(ErrorKind::kInvalid, "unknown argument '" + argument + "'", "see deft optimize --help");
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft optimize --help");
  if (auto ok = check_policy(options.policy); !ok) return tl::unexpected(ok.error());
  if (options.running && !options.codecs.empty())
    return fail(ErrorKind::kInvalid, "a running job cannot change its codec", "leave out --running or --compression");
  if (options.memory > 0 && !options.command.empty())
    return fail(ErrorKind::kInvalid, "--verify runs the script as it is, and --memory may ask to change it",
                "leave out one of them");
  if (options.output.empty()) options.output = options.folder + "/optimized.flags";
  return options;
}

// What each codec would cost. A job whose gradients were encoded may have them exact again.
Result<std::vector<model::CodecCost>> codecs_of(const OptimizeOptions& options, const replay::MeasuredJob& measured) {
  std::vector<model::CodecCost> costs;
  if (!options.running && measured.profile.codecs.size() > 1) costs.push_back({.name = "none"});
  for (const std::string& name : options.codecs) {
    auto cost = replay::codec_cost(name, measured, measured.node_count);
    if (!cost) return tl::unexpected(cost.error());
    costs.push_back(*std::move(cost));
  }
  return costs;
}

// What a codec would win that nobody has asked for: it rounds gradients.
void suggest_codec(const replay::MeasuredJob& measured, const optimize::Found& found) {
  constexpr const char* kSuggested = "int8";
  if (measured.profile.codecs.size() > 1) return;
  const auto cost = replay::codec_cost(kSuggested, measured, measured.node_count);
  if (!cost) return;
  optimize::Settings settings = found.settings;
  settings.compression = kSuggested;
  const double us = optimize::replayed_us(measured, settings, {*cost});
  if (us <= 0 || us > found.step_us * (1 - optimize::kLeastGain)) return;
  std::printf("compression = %s would make it %.1f ms, and rounds gradients: see deft optimize --compression %s\n",
              kSuggested, us / 1000, kSuggested);
}

// `advice`: what the script must do beside.
Result<void> write_flags(const std::string& path, const optimize::Found& found,
                         const std::vector<std::string>& advice) {
  std::ofstream out(path);
  for (const auto& line : advice) out << "# " << line << '\n';
  char promise[160];
  std::snprintf(promise, sizeof promise,
                "# deft optimize: %.1f ms a step instead of %.1f ms, by replay, which errs by %.1f %%\n",
                found.step_us / 1000, found.traced_us / 1000, 100 * found.error);
  if (found.worth_it()) {
    out << promise;
    for (const auto& [name, value] : found.settings.options(found.traced)) out << name << " = " << value << '\n';
  }
  if (!out.flush()) return fail(ErrorKind::kInvalid, "cannot write " + path);
  return {};
}

void print_json(const optimize::Found& found, double seconds, const std::optional<Verified>& verified,
                const nlohmann::json& memory) {
  nlohmann::json json = {
      {"worth_it", found.worth_it()},
      {"settings",
       {{"policy", found.settings.policy},
        {"partition_bytes", found.settings.partition_bytes},
        {"credit_bytes", found.settings.credit_bytes},
        {"compression", found.settings.compression}}},
      {"options", found.worth_it() ? found.settings.options(found.traced) : std::map<std::string, std::string>()},
      {"step_us", found.step_us},
      {"traced_step_us", found.traced_us},
      {"error", found.error},
      {"replays", found.replays},
      {"seconds", seconds}};
  if (verified)
    json["verified"] = {{"before_us", verified->before_us},
                        {"after_us", verified->after_us},
                        {"noise_us", verified->noise_us},
                        {"is_faster", verified->is_faster()}};
  if (!memory.is_null()) json["memory"] = memory;
  std::printf("%s\n", json.dump(2).c_str());
}

void print(const optimize::Found& found, double seconds, const std::string& path) {
  if (found.worth_it()) {
    std::printf("%.1f ms a step instead of %.1f ms (%.0f %%) by replay, which errs by %.1f %%:\n", found.step_us / 1000,
                found.traced_us / 1000, 100 * (found.step_us / found.traced_us - 1), 100 * found.error);
    for (const auto& [name, value] : found.settings.options(found.traced))
      std::printf("  %s = %s\n", name.c_str(), value.c_str());
    if (!path.empty()) std::printf("written to %s: train with DEFT_FLAG_FILE=%s\n", path.c_str(), path.c_str());
  } else {
    std::printf("no settings are faster than the traced ones by more than replay errs (%.1f %%): keep them\n",
                100 * found.error);
  }
  std::printf("%zu settings were replayed in %.1f s\n", found.replays, seconds);
}

}  // namespace

Result<int> run_optimize(Arguments arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  auto job = read_traced_job("deft optimize", options->folder);
  if (!job) return tl::unexpected(job.error());
  replay::charge_codecs(job->measured, std::thread::hardware_concurrency());  // nodes are taken to be like this one
  std::optional<optimize::MemoryFit> fit;
  if (options->memory > 0) {
    auto fits = optimize::fit_memory(job->measured, options->memory);
    if (!fits) return tl::unexpected(fits.error());
    fit = *std::move(fits);
  }
  const bool changes_script = fit && fit->is_needed();
  const auto advice = fit ? memory_advice(*fit, job->measured) : std::vector<std::string>();
  auto codecs = codecs_of(*options, job->measured);
  if (!codecs) return tl::unexpected(codecs.error());
  const TimeUs began_us = MonotonicClock::now();
  const optimize::SearchLimits limits{
      .policies = options->policy.empty() ? optimize::exact_policies() : std::vector{options->policy},
      .keeps_buckets = options->running,
      .codecs = *std::move(codecs),
      .memory = changes_script ? fit->chosen().what_if : replay::MemoryWhatIf{}};
  const auto found = optimize::search(job->measured, limits, [&] {
    return 1 - static_cast<double>(MonotonicClock::now() - began_us) / static_cast<double>(options->budget_us);
  });
  if (!found) return tl::unexpected(found.error());
  const double seconds = static_cast<double>(MonotonicClock::now() - began_us) / 1e6;
  std::optional<Verified> verified;
  if (found->worth_it() && !options->command.empty()) {
    const auto both = run_both(options->command, found->settings.options(found->traced));
    if (!both) return tl::unexpected(both.error());
    verified = *both;
  }
  const bool slower = verified && !verified->is_faster();
  if ((found->worth_it() || changes_script) && !slower)
    if (auto ok = write_flags(options->output, *found, changes_script ? advice : std::vector<std::string>()); !ok)
      return tl::unexpected(ok.error());
  if (options->json) {
    print_json(*found, seconds, verified, fit ? memory_fit_json(*fit, job->measured) : nlohmann::json());
  } else {
    for (const auto& line : advice) std::printf("%s\n", line.c_str());
    print(*found, seconds, slower ? "" : options->output);
  }
  if (!options->json && !options->running && options->codecs.empty() && !changes_script)
    suggest_codec(job->measured, *found);
  if (verified && !options->json)
    std::printf("verified: %.1f ms a step instead of %.1f ms (%+.0f %%), each twice, within %.1f ms%s\n",
                verified->after_us / 1000, verified->before_us / 1000,
                100 * (verified->after_us / verified->before_us - 1), verified->noise_us / 1000,
                slower ? ", so nothing was written: keep the settings" : "");
  return slower ? kExitFailed : kExitOk;
}

}  // namespace deft::tools
