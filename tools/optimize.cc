// deft optimize DIR: settings with which the traced job would be faster.
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/base/clock.h"
#include "core/base/quantities.h"
#include "core/base/text.h"
#include "core/compress/registry.h"
#include "core/model/link_names.h"
#include "core/optimize/memory_fit.h"
#include "core/optimize/search.h"
#include "core/replay/traced_codec.h"
#include "tools/command.h"
#include "tools/flag_file.h"
#include "tools/optimize_memory.h"
#include "tools/script_changes.h"
#include "tools/traced_job.h"
#include "tools/user_passes.h"
#include "tools/verify.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft optimize DIR [--budget 60s] [--policy NAME] [--running] [--compression CODEC ...]\n"
    "                         [--pass FILE ...] [--memory SIZE] [-o FILE] [--json] [--try NAME ...]\n"
    "                         [--verify | --run COMMAND ...]\n"
    "\n"
    "Looks for a policy, a bucketing, sizes and links with which the job whose traces (DEFT_TRACE=DIR) are in DIR "
    "would be\n"
    "faster, by replay, for at most as long as the budget. Updates stay those of plain data-parallel training. If "
    "it finds\n"
    "some, it writes them to FILE, by default DIR/optimized.flags, which DEFT_FLAG_FILE takes.\n"
    "--policy looks at that policy alone. --running keeps buckets and links, which a running job cannot change "
    "(deft set).\n"
    "--compression, once or more, lets gradients be encoded so if that wins more than 2 %.\n"
    "--pass passes.py, once or more, asks Python functions under @deft.optimization_pass for settings to try, too.\n"
    "--memory 8GB: if a worker needs more, the job is to accumulate gradients or to recompute activations, whichever "
    "is\n"
    "faster; the script must do that, and the settings are looked for with it.\n"
    "--try runs COMMAND once more, with a change that only the script can make, measures its layers, and looks for "
    "settings\n"
    "for it: with --try compile the script asks deft.trying(\"compile\"). Nothing of that is written.\n"
    "--verify runs COMMAND, which starts the job, twice as it is and twice with the settings found. If it is not "
    "faster by\n"
    "more than runs differ, no file is written. It also tries settings that promise too little without a proof.\n";

struct OptimizeOptions {
  std::string folder;
  std::string output;
  TimeUs budget_us = 60'000'000;
  bool json = false;
  std::string policy;                // that may be chosen; empty: all exact ones
  bool running = false;              // only what can change in a running job
  std::vector<std::string> codecs;   // that may be chosen
  std::vector<std::string> passes;   // Python files
  std::uint64_t memory = 0;          // of a worker, at most; 0: it does not matter
  std::vector<std::string> changes;  // of the script, to be tried
  std::vector<std::string> command;  // that starts the job; empty: nothing is verified or tried
  bool verifies = false;             // the settings found; else the command is for the changes alone
};

Result<void> check_policy(const std::string& policy) {
  const auto known = optimize::exact_policies();
  if (policy.empty() || std::ranges::find(known, policy) != known.end()) return {};
  const std::vector<std::string_view> names(known.begin(), known.end());
  return fail(ErrorKind::kInvalid, "--policy is '" + policy + "', which is no policy whose settings are looked for",
              did_you_mean(policy, names, "one of " + joined(known, " ")));
}

Result<void> parse_value(const std::string& flag, const std::string& value, OptimizeOptions& options) {
  if (flag == "--compression") {
    if (const auto codec = compress::make_codec(value); !codec) return tl::unexpected(codec.error());
    options.codecs.push_back(value);
  } else if (flag == "--pass") {
    options.passes.push_back(value);
  } else if (flag == "--try") {
    if (const auto ok = check_change(value); !ok) return tl::unexpected(ok.error());
    options.changes.push_back(value);
  } else if (flag == "--memory") {
    const auto bytes = parse_size(flag, value);
    if (!bytes) return tl::unexpected(bytes.error());
    options.memory = *bytes;
  } else if (flag == "--budget") {
    const auto budget_us = parse_duration(flag, value);
    if (!budget_us) return tl::unexpected(budget_us.error());
    if (*budget_us <= 0)
      return fail(ErrorKind::kInvalid, "--budget is '" + value + "', and a search takes some time",
                  "give 60s, for instance");
    options.budget_us = *budget_us;
  } else {
    (flag == "--policy" ? options.policy : options.output) = value;
  }
  return {};
}

std::string default_output(const OptimizeOptions& options) { return options.folder + "/optimized.flags"; }

Result<void> check_command(const OptimizeOptions& options) {
  if (options.memory > 0 && options.verifies)
    return fail(ErrorKind::kInvalid, "--verify runs the script as it is, and --memory may ask to change it",
                "leave out one of them");
  if (!options.changes.empty() && options.command.empty())
    return fail(ErrorKind::kInvalid, "--try needs the command that starts the job",
                "put --run or --verify, and the command, behind all other arguments");
  if (options.changes.empty() && !options.command.empty() && !options.verifies)
    return fail(ErrorKind::kInvalid, "--run has nothing to try", "name it by --try NAME, or use --verify");
  return {};
}

constexpr std::array<std::string_view, 12> kFlags = {"--budget",      "-o",        "--output", "--policy",
                                                     "--compression", "--pass",    "--memory", "--try",
                                                     "--json",        "--running", "--verify", "--run"};
constexpr std::span kWithValue = std::span(kFlags).first<8>();

Result<OptimizeOptions> parse(Arguments arguments) {
  OptimizeOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--running") {
      options.running = true;
    } else if (std::ranges::find(kWithValue, argument) != kWithValue.end()) {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, argument + " needs a value", "see deft optimize --help");
      if (auto ok = parse_value(argument, arguments[i], options); !ok) return tl::unexpected(ok.error());
    } else if (argument == "--verify" || argument == "--run") {
      options.verifies = argument == "--verify";
      options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
      if (options.command.empty())
        return fail(ErrorKind::kInvalid, argument + " needs the command that starts the job",
                    "see deft optimize --help");
      break;
    } else if (!argument.starts_with("-") && options.folder.empty()) {
      options.folder = argument;
    } else {
      return unknown_argument("optimize", argument, kFlags);
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft optimize --help");
  if (auto ok = check_policy(options.policy); !ok) return tl::unexpected(ok.error());
  if (options.running && !options.codecs.empty())
    return fail(ErrorKind::kInvalid, "a running job cannot change its codec", "leave out --running or --compression");
  if (auto ok = check_command(options); !ok) return tl::unexpected(ok.error());
  if (options.output.empty()) options.output = default_output(options);
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

// The time that the user gives.
class Budget {
 public:
  explicit Budget(TimeUs all_us) : all_us_(all_us) {}
  [[nodiscard]] TimeUs left_us() const { return began_us_ + all_us_ - MonotonicClock::now(); }
  // As a share.
  [[nodiscard]] double left() const { return static_cast<double>(left_us()) / static_cast<double>(all_us_); }
  [[nodiscard]] bool is_over() const { return left_us() <= 0; }
  [[nodiscard]] double used_s() const { return static_cast<double>(MonotonicClock::now() - began_us_) / 1e6; }

 private:
  TimeUs began_us_ = MonotonicClock::now();
  TimeUs all_us_;
};

struct Outcome {
  optimize::Found found;
  double seconds = 0;
  TimeUs left_us = 0;                // of the budget, behind the search
  std::vector<std::string> advice;   // what the script must do to need less memory
  bool changes_script = false;       // the advice is more than that nothing is to be done
  std::optional<Verified> verified;  // if a command was given, and there was something to try
  bool is_taken = false;             // the settings found: by what was promised, or verified

  [[nodiscard]] bool is_written() const { return is_taken || changes_script; }
  [[nodiscard]] OptionValues options() const {
    return is_taken ? found.settings.options(found.traced) : OptionValues();
  }
};

// What a codec would win beside the settings that were told to be taken or kept, if there is time to look. Nobody has asked for it: it
// rounds gradients.
void suggest_codec(const replay::MeasuredJob& measured, const Outcome& outcome) {
  const optimize::Found& found = outcome.found;
  constexpr const char* kSuggested = "int8";
  if (measured.profile.codecs.size() > 1 || outcome.left_us <= 0) return;
  const Budget rest(outcome.left_us);
  const auto cost = replay::codec_cost(kSuggested, measured, measured.node_count);
  if (!cost) return;
  optimize::Settings settings = outcome.is_taken ? found.settings : found.traced;
  settings.compression = kSuggested;
  const double us = optimize::replayed_us(measured, settings, {*cost}, false, [&] { return rest.is_over(); });
  if (us <= 0 || us > (outcome.is_taken ? found.step_us : found.traced_us) * (1 - optimize::kLeastGain)) return;
  std::printf("compression = %s would make it %.1f ms, and rounds gradients: see deft optimize --compression %s\n",
              kSuggested, us / 1000, kSuggested);
}

Result<void> write_flags(const std::string& path, const Outcome& outcome) {
  std::vector<std::string> comments = outcome.changes_script ? outcome.advice : std::vector<std::string>();
  const OptionValues options = outcome.options();
  if (!options.empty()) {
    char promise[160];
    std::snprintf(promise, sizeof promise,
                  "deft optimize: %.1f ms a step instead of %.1f ms, by replay, which errs by %.1f %%",
                  outcome.found.step_us / 1000, outcome.found.traced_us / 1000, 100 * outcome.found.error);
    comments.emplace_back(promise);
    comments.push_back("A variable wins over this file: unset " + variables_in_words(options) + ".");
    comments.emplace_back("If the job has a flag file already, add these lines to that one.");
  }
  return write_flag_file(path, comments, options);
}

// With which the job has run. Its trace has the links by their names, whatever the option said.
OptionValues options_of_the_job(const replay::MeasuredJob& measured) {
  OptionValues values = measured.options;
  if (!measured.links.empty()) values["links"] = model::links_option(measured.links);
  return values;
}

// What an earlier search has left is no advice for this job.
Result<void> leave_file(const OptimizeOptions& options, const Outcome& outcome, const replay::MeasuredJob& measured) {
  if (outcome.is_written()) return write_flags(options.output, outcome);
  if (options.output == default_output(options) && remove_old_flag_file(options.output, options_of_the_job(measured)))
    std::fprintf(stderr, "deft optimize: removed %s, which an earlier search had written\n", options.output.c_str());
  return {};
}

void print_json(const Outcome& outcome, const nlohmann::json& memory, const std::vector<ScriptChange>& changes) {
  const optimize::Found& found = outcome.found;
  nlohmann::json json = {{"worth_it", outcome.is_taken || outcome.verified},
                         {"settings",
                          {{"policy", found.settings.policy},
                           {"bucket_bytes", found.settings.bucket_bytes},
                           {"partition_bytes", found.settings.partition_bytes},
                           {"credit_bytes", found.settings.credit_bytes},
                           {"compression", found.settings.compression},
                           {"codec_min_bytes", found.settings.codec_min_bytes},
                           {"links", found.settings.links}}},
                         {"options", outcome.verified ? found.settings.options(found.traced) : outcome.options()},
                         {"step_us", found.step_us},
                         {"traced_step_us", found.traced_us},
                         {"error", found.error},
                         {"replays", found.replays},
                         {"ran_out_of_time", found.ran_out_of_time},
                         {"seconds", outcome.seconds}};
  if (const auto& verified = outcome.verified)
    json["verified"] = {{"before_us", verified->before_us},
                        {"after_us", verified->after_us},
                        {"noise_us", verified->noise_us},
                        {"is_faster", verified->is_faster()}};
  if (!memory.is_null()) json["memory"] = memory;
  for (const auto& [name, result] : found.passes)
    json["passes"][name] = {{"proposals", result.proposals}, {"best_us", result.best_us}};
  for (const ScriptChange& change : changes) json["tries"].push_back(change_json(change));
  put_json(json);
}

// Both ways to train with the settings lead to the same. The first is what --verify does.
void print_how_to_train(const OptionValues& options, const std::string& path) {
  std::printf("train with %s\nor with the file %s: DEFT_FLAG_FILE=%s, and %s not set, since a variable wins over it\n",
              as_variables(options).c_str(), path.c_str(), path.c_str(), variables_in_words(options).c_str());
}

void print_passes(const optimize::Found& found) {
  if (found.passes_asked == 0) std::printf("no pass was asked: the --budget left no time for them\n");
  for (const auto& [name, result] : found.passes) {
    std::printf("pass %s: %zu proposal%s, ", name.c_str(), result.proposals, result.proposals == 1 ? "" : "s");
    if (result.best_us > 0)
      std::printf("at best %.1f ms a step\n", result.best_us / 1000);
    else
      std::printf("and the job runs with none of them\n");
  }
}

void print(const Outcome& outcome, const OptimizeOptions& asked) {
  const optimize::Found& found = outcome.found;
  const double gain = 100 * (1 - found.step_us / found.traced_us);
  const OptionValues options = found.settings.options(found.traced);
  if (outcome.is_taken || outcome.verified) {
    std::printf("%.1f ms a step instead of %.1f ms (%.0f %%) by replay, which errs by %.1f %%:\n", found.step_us / 1000,
                found.traced_us / 1000, -gain, 100 * found.error);
    for (const auto& [name, value] : options) std::printf("  %s = %s\n", name.c_str(), value.c_str());
    if (outcome.is_taken) print_how_to_train(options, asked.output);
  } else if (found.worth_trying()) {
    std::printf(
        "%s would win %.1f %% by replay, too little to be sure of it (%.1f %%): keep the settings, or let --verify "
        "try them\n",
        as_variables(options).c_str(), gain, 100 * found.least_promise());
  } else if (found.replays == 0 && outcome.seconds * 1e6 >= static_cast<double>(asked.budget_us)) {
    std::printf("no settings were tried: the --budget was used up by the replay of the traced job\n");
  } else if (found.ran_out_of_time) {
    std::printf(
        "the --budget was used up before better settings were replayed as a whole, so none are told: give more time\n");
  } else {
    std::printf("no settings are faster than the traced ones by more than replay errs (%.1f %%): keep them\n",
                100 * found.error);
  }
  if (!asked.passes.empty()) print_passes(found);
  std::printf("%zu settings were replayed in %.1f s\n", found.replays, outcome.seconds);
}

void print_verified(const Verified& verified) {
  std::printf("verified: %.1f ms a step instead of %.1f ms (%+.0f %%), each twice, within %.1f ms%s\n",
              verified.after_us / 1000, verified.before_us / 1000, 100 * (verified.after_us / verified.before_us - 1),
              verified.noise_us / 1000, verified.is_faster() ? "" : ", so nothing was written: keep the settings");
}

Result<optimize::Found> search(const OptimizeOptions& options, const replay::MeasuredJob& measured,
                               const replay::MemoryWhatIf& memory, const Budget& budget) {
  auto codecs = codecs_of(options, measured);
  if (!codecs) return tl::unexpected(codecs.error());
  optimize::SearchLimits limits{
      .policies = options.policy.empty() ? optimize::exact_policies() : std::vector{options.policy},
      .keeps_buckets = options.running,
      .codecs = *std::move(codecs),
      .memory = memory};
  std::optional<UserPasses> passes;
  if (!options.passes.empty()) {
    auto begun = UserPasses::begin(options.passes, measured, options.running);
    if (!begun) return tl::unexpected(begun.error());
    passes.emplace(*std::move(begun));
    limits.passes = [&](const optimize::Settings& best, double step_us) {
      return passes->ask(best, step_us, static_cast<double>(budget.left_us()) / 1e6);
    };
  }
  return optimize::search(measured, limits, [&] { return budget.left(); });
}

Result<Outcome> outcome_of(const OptimizeOptions& options, const replay::MeasuredJob& measured,
                           const std::optional<optimize::MemoryFit>& fit, const Budget& budget) {
  Outcome outcome;
  outcome.changes_script = fit && fit->is_needed();
  if (fit) outcome.advice = memory_advice(*fit, measured);
  auto found =
      search(options, measured, outcome.changes_script ? fit->chosen().what_if : replay::MemoryWhatIf{}, budget);
  if (!found) return tl::unexpected(found.error());
  outcome.found = *std::move(found);
  outcome.seconds = budget.used_s();
  outcome.left_us = budget.left_us();
  outcome.is_taken = outcome.found.worth_it();
  if (!options.verifies || !outcome.found.worth_trying()) return outcome;
  const auto both = run_both(options.command, outcome.found.settings.options(outcome.found.traced));
  if (!both) return tl::unexpected(both.error());
  outcome.verified = *both;
  outcome.is_taken = both->is_faster();
  return outcome;
}

// Each change has a run, and a search for its own settings.
Result<std::vector<ScriptChange>> try_changes(const OptimizeOptions& options) {
  std::vector<ScriptChange> changes;
  for (const std::string& name : options.changes) {
    auto measured = measure_change(name, options.command);
    if (!measured) return tl::unexpected(measured.error());
    replay::charge_codecs(*measured, std::thread::hardware_concurrency());
    auto found = search(options, *measured, {}, Budget(options.budget_us));
    if (!found) return tl::unexpected(found.error());
    changes.push_back({name, *std::move(measured), *std::move(found)});
  }
  return changes;
}

}  // namespace

Result<int> run_optimize(Arguments arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  if (auto ok = replay::check_folder(options->folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_output(options->output); !ok) return tl::unexpected(ok.error());
  const Budget budget(options->budget_us);
  auto job = read_traced_job("deft optimize", options->folder);
  if (!job) return tl::unexpected(job.error());
  replay::MeasuredJob& measured = job->measured;
  replay::charge_codecs(measured, std::thread::hardware_concurrency());  // nodes are taken to be like this one
  std::optional<optimize::MemoryFit> fit;
  if (options->memory > 0) {
    auto fits = optimize::fit_memory(measured, options->memory);
    if (!fits) return tl::unexpected(fits.error());
    fit = *std::move(fits);
  }
  const auto outcome = outcome_of(*options, measured, fit, budget);
  if (!outcome) return tl::unexpected(outcome.error());
  const auto changes = try_changes(*options);
  if (!changes) return tl::unexpected(changes.error());
  if (auto ok = leave_file(*options, *outcome, measured); !ok) return tl::unexpected(ok.error());
  const bool is_refuted = outcome->verified && !outcome->is_taken;
  if (options->json) {
    print_json(*outcome, fit ? memory_fit_json(*fit, measured) : nlohmann::json(), *changes);
    return is_refuted ? kExitFailed : kExitOk;
  }
  for (const auto& line : outcome->advice) std::printf("%s\n", line.c_str());
  print(*outcome, *options);
  if (!options->running && options->codecs.empty() && !outcome->changes_script) suggest_codec(measured, *outcome);
  if (outcome->verified) print_verified(*outcome->verified);
  for (const ScriptChange& change : *changes)
    std::printf("%s\n", change_words({{}, measured, outcome->found}, change).c_str());
  return is_refuted ? kExitFailed : kExitOk;
}

}  // namespace deft::tools
