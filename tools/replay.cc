#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/numbers.h"
#include "core/base/policy_traits.h"
#include "core/base/text.h"
#include "core/compress/compression_option.h"
#include "core/compress/registry.h"
#include "core/replay/replay.h"
#include "core/replay/traced_codec.h"
#include "tools/command.h"
#include "tools/memory_words.h"
#include "tools/policy_argument.h"
#include "tools/traced_job.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft replay DIR [WHAT IF ...] [--json]\n"
    "\n"
    "Predicts the step time of the job whose traces (DEFT_TRACE=DIR) are in DIR, and of the job as it would be with\n"
    "  --policy NAME|all        another policy\n"
    "  --links NAME=2x[,...]    links that are so many times as fast; 0x: not used; all=2x: all links\n"
    "  --nodes N                so many nodes\n"
    "  --compute 1.5x           workers that compute so many times as fast\n"
    "  --compression CODEC      gradients encoded so; none: not encoded; auto[/max=CODEC]: plans choose\n"
    "  --no-straggler           every node as fast as the fastest\n"
    "  --batch 2x               batches that are so many times as large\n"
    "  --accumulate N           the batch in so many micro-batches, whose gradients are added up\n"
    "It also says what workers need in memory, if the trace tells.\n"
    "--profile FILE writes what was measured, for deft simulate.\n";

struct ReplayOptions {
  std::string folder;
  replay::WhatIf what_if;
  std::string codec;    // of all gradients; empty: as traced
  std::string plans;    // what the option compression lets plans choose; empty: as traced
  std::string profile;  // a file; empty: it is not written
  bool json = false;
};

// "2x" or "0.5x".
Result<double> parse_times(const std::string& text, const std::string& what) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  const bool whole = read.ptr == end || (read.ptr + 1 == end && *read.ptr == 'x');
  if (read.ec != std::errc{} || !whole || !(value > 0))
    return fail(ErrorKind::kInvalid, what + " is '" + text + "'",
                "say how many times as " + std::string(what == "--batch" ? "large" : "fast") + ": 2x, 0.5x");
  return value;
}

Result<void> parse_links(const std::string& text, std::map<std::string, double>& speeds) {
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, comma - at);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(ErrorKind::kInvalid, "--links has '" + item + "'", "give NAME=TIMES: gloo:eth0=2x");
    const std::string name = item.substr(0, equals), times = item.substr(equals + 1);
    const bool is_left_out = times == "0" || times == "0x";
    const auto speed = is_left_out ? 0.0 : parse_times(times, "the speed of link " + name);
    if (!speed) return tl::unexpected(speed.error());
    speeds[name] = *speed;
    at = comma + 1;
  }
  return {};
}

// `all` stands for every link that is not named itself.
void name_all_links(const model::Profile& profile, std::map<std::string, double>& speeds) {
  const auto all = speeds.extract("all");
  if (all.empty()) return;
  for (const auto& link : profile.links) speeds.emplace(link.name, all.mapped());
}

Result<void> parse_codec(const std::string& text, ReplayOptions& options) {
  const auto ladder = compress::ladder_of(text);
  (ladder ? options.plans : options.codec) = text;
  for (const std::string& name : ladder.value_or(std::vector{text}))
    if (const auto codec = compress::make_codec(name); !codec && name != "none") return tl::unexpected(codec.error());
  return {};
}

// Lets plans choose among other codecs than those of the job's options.
void plan_codecs(const std::string& compression, replay::MeasuredJob& measured) {
  measured.options["compression"] = compression;
  measured.plan_codecs.clear();
  replay::price_plan_codecs(measured);
}

Result<void> parse_value(const std::string& flag, const std::string& value, ReplayOptions& options) {
  replay::WhatIf& what_if = options.what_if;
  if (flag == "--policy") {
    if (auto ok = check_policy(value); !ok) return ok;
    what_if.policy = value;
    return {};
  }
  if (flag == "--links") return parse_links(value, what_if.link_speed);
  if (flag == "--compression") return parse_codec(value, options);
  if (flag == "--compute" || flag == "--batch") {
    const auto times = parse_times(value, flag);
    if (!times) return tl::unexpected(times.error());
    (flag == "--batch" ? what_if.memory.batch : what_if.compute_speed) = *times;
    return {};
  }
  const auto count = parse_whole<std::uint32_t>(value);
  const bool passes = flag == "--accumulate";
  if (!count)
    return fail(ErrorKind::kInvalid, flag + " is '" + value + "'",
                passes ? "give a number of micro-batches" : "give a number of nodes");
  if (passes)
    what_if.memory.passes = *count;
  else
    what_if.nodes = count;
  return {};
}

constexpr std::array<std::string_view, 10> kFlags = {"--policy",      "--links", "--nodes",      "--compute",
                                                     "--compression", "--batch", "--accumulate", "--no-straggler",
                                                     "--profile",     "--json"};
constexpr std::span kWithValue = std::span(kFlags).first<7>();

bool has_value(const std::string& flag) { return std::ranges::find(kWithValue, flag) != kWithValue.end(); }

Result<ReplayOptions> parse(Arguments arguments) {
  ReplayOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--no-straggler") {
      options.what_if.straggler = false;
    } else if (argument == "--profile") {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, "--profile needs the name of a file", "see deft replay --help");
      options.profile = arguments[i];
    } else if (has_value(argument)) {
      if (++i == arguments.size())
        return fail(ErrorKind::kInvalid, argument + " needs a value", "see deft replay --help");
      if (auto ok = parse_value(argument, arguments[i], options); !ok) return tl::unexpected(ok.error());
    } else if (!argument.starts_with("-") && options.folder.empty()) {
      options.folder = argument;
    } else {
      return unknown_argument("replay", argument, kFlags);
    }
  }
  if (options.folder.empty())
    return fail(ErrorKind::kInvalid, "the folder of the traces is missing", "see deft replay --help");
  return options;
}

std::vector<std::string> policies_of(const replay::WhatIf& what_if) {
  if (what_if.policy != "all") return {what_if.policy};
  std::vector<std::string> policies;
  for (const auto& traits : kPolicyTraits)
    if (!traits.simulator_only) policies.emplace_back(traits.name);
  return policies;
}

bool is_as_traced(const ReplayOptions& options, const std::string& policy, const std::string& traced) {
  const replay::WhatIf& what_if = options.what_if;
  return policy == traced && options.plans.empty() && what_if.link_speed.empty() && !what_if.nodes &&
         what_if.straggler && what_if.compute_speed == 1 && !what_if.codec && what_if.memory.is_as_traced();
}

// What replay says of each policy, or why the job cannot have it.
struct Predictions {
  std::vector<replay::Prediction> made;
  std::vector<std::pair<std::string, Error>> cannot;  // by policy
};

Predictions predict(const replay::MeasuredJob& measured, replay::WhatIf what_if) {
  Predictions predictions;
  for (const auto& policy : policies_of(what_if)) {
    what_if.policy = policy;
    auto prediction = replay::replay(measured, what_if);
    if (prediction)
      predictions.made.push_back(*std::move(prediction));
    else
      predictions.cannot.emplace_back(policy, prediction.error());
  }
  return predictions;
}

void print(const Predictions& predictions, const replay::MeasuredJob& measured, const ReplayOptions& options) {
  const auto traced = measured.options.find("policy");
  std::printf("%-16s %10s %10s %10s %10s %10s %9s\n", "policy", "step p50", "p10", "p90", "coarse", "compute",
              "updates");
  for (const auto& p : predictions.made) {
    std::printf("%-16s %7.1f ms %7.1f ms %7.1f ms %7.1f ms %7.1f ms %9.2f", p.policy.c_str(), p.step_us_p50 / 1000,
                p.step_us_p10 / 1000, p.step_us_p90 / 1000, p.coarse_step_us / 1000, p.compute_us / 1000,
                p.updates_per_step);
    if (traced != measured.options.end() && is_as_traced(options, p.policy, traced->second))
      std::printf("   traced: %.1f ms, %+.1f %%", p.measured_step_us_p50 / 1000,
                  100 * (p.step_us_p50 / p.measured_step_us_p50 - 1));
    if (measured.in_force && p.policy == replay::policy_of(measured.options))
      std::printf("   (%s)", sched::to_text(*measured.in_force).c_str());
    std::printf("\n");
  }
  for (const auto& [policy, why] : predictions.cannot)
    std::printf("%-16s cannot: %s\n", policy.c_str(), why.what.c_str());
  print_memory(measured, options.what_if.memory);
}

void print_json(const Predictions& predictions, const nlohmann::json& memory) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& p : predictions.made)
    list.push_back({{"policy", p.policy},
                    {"step_us_p10", p.step_us_p10},
                    {"step_us_p50", p.step_us_p50},
                    {"step_us_p90", p.step_us_p90},
                    {"step_us_mean", p.step_us_mean},
                    {"compute_us", p.compute_us},
                    {"updates_per_step", p.updates_per_step},
                    {"coarse_step_us", p.coarse_step_us},
                    {"measured_step_us_p50", p.measured_step_us_p50},
                    {"measured_step_us_mean", p.measured_step_us_mean},
                    {"memory", memory}});
  for (const auto& [policy, why] : predictions.cannot) list.push_back({{"policy", policy}, {"cannot", why.message()}});
  put_json(list);
}

}  // namespace

Result<int> run_replay(Arguments arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  if (!options->profile.empty())
    if (auto ok = check_output(options->profile); !ok) return tl::unexpected(ok.error());
  auto job = read_traced_job("deft replay", options->folder);
  if (!job) return tl::unexpected(job.error());
  replay::charge_codecs(job->measured, std::thread::hardware_concurrency());  // nodes are taken to be like this one
  if (!options->plans.empty()) plan_codecs(options->plans, job->measured);
  const replay::MeasuredJob& measured = job->measured;
  name_all_links(measured.profile, options->what_if.link_speed);
  if (!options->codec.empty()) {
    auto cost = replay::codec_cost(options->codec, measured, options->what_if.nodes.value_or(measured.node_count));
    if (!cost) return tl::unexpected(cost.error());
    options->what_if.codec = *std::move(cost);
  }
  if (!options->profile.empty())
    if (auto ok = write_text(options->profile, model::to_json(measured.profile) + "\n"); !ok)
      return tl::unexpected(ok.error());
  const Predictions predictions = predict(measured, options->what_if);
  if (predictions.made.empty()) return tl::unexpected(predictions.cannot.front().second);
  if (options->json)
    print_json(predictions, memory_json(measured, options->what_if.memory));
  else
    print(predictions, measured, *options);
  return kExitOk;
}

}  // namespace deft::tools
