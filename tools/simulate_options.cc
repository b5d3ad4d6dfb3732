#include "tools/simulate_options.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/base/numbers.h"
#include "core/base/text.h"
#include "core/plan/planner.h"
#include "tools/policy_argument.h"

namespace deft::tools {
namespace {

using Setter = std::function<bool(SimulateOptions&, const std::string&)>;

struct Flag {
  std::string_view name;
  std::string_view value;  // empty: a switch
  std::string_view help;
  Setter set;
};

template <typename T>
bool parse(const std::string& text, T minimum, T& out) {
  const auto value = parse_whole<T>(text);
  if (!value || !(*value >= minimum)) return false;
  if constexpr (std::is_floating_point_v<T>)
    if (!std::isfinite(*value)) return false;
  out = *value;
  return true;
}

template <typename T>
Setter number(T SimulateOptions::*member, T minimum) {
  return [=](SimulateOptions& o, const std::string& text) { return parse(text, minimum, o.*member); };
}

Setter limit(std::uint32_t plan::PlanLimits::*member, std::uint32_t minimum) {
  return [=](SimulateOptions& o, const std::string& text) { return parse(text, minimum, o.limits.*member); };
}

Setter percent(double plan::PlanLimits::*member) {
  return [=](SimulateOptions& o, const std::string& text) {
    double value = 0;
    if (!parse(text, 0.0, value) || value > 100) return false;
    o.limits.*member = value / 100;
    return true;
  };
}

Setter text(std::string SimulateOptions::*member) {
  return [=](SimulateOptions& o, const std::string& value) { return !(o.*member = value).empty(); };
}

Setter names(std::vector<std::string> SimulateOptions::*member) {
  return [=](SimulateOptions& options, const std::string& list) {
    auto& out = options.*member;
    out.clear();
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t comma = std::min(list.find(',', at), list.size());
      if (comma == at) return false;
      out.push_back(list.substr(at, comma - at));
      at = comma + 1;
    }
    return true;
  };
}

const std::vector<Flag>& flags() {
  using O = SimulateOptions;
  static const std::vector<Flag> kFlags = {
      {"--policy", "NAME|all", "the policy to run (default: all)", text(&O::policy)},
      {"--links", "a,b", "only these links of the profile", names(&O::links)},
      {"--priority-channel", "a,b",
       "links on which parts of up to 16 KiB on the wire pass what is on its way, as on gloo's in training",
       names(&O::priority_channel)},
      {"--link-costs", "FILE", "the links that deft probe --output has measured, instead of the profile's",
       text(&O::link_costs)},
      {"--bucketing", "NAME", "profile, uniform:BYTES, ddp, mgwfbp, usbyte or deft (default: profile)",
       text(&O::bucketing)},
      {"--steps", "N", "steps to run, 2 or more (default: 200)", number<std::uint64_t>(&O::steps, 2)},
      {"--warmup", "N", "steps that are not measured (default: a quarter)", number<std::uint64_t>(&O::warmup, 1)},
      {"--json", "", "print the result as JSON", [](O& o, const std::string&) { return o.json = true; }},
      {"--events", "FILE", "write every computation, transfer and update, one JSON object a line",
       text(&O::events_path)},
      {"--svg", "FILE", "draw the timeline", text(&O::svg_path)},
      {"--partition-bytes", "N", "largest part, 64 or more (default: 4000000)",
       number<std::uint64_t>(&O::partition_bytes, 64)},
      {"--credit-bytes", "N", "bytes in flight on a link (default: 16000000)",
       number<std::uint64_t>(&O::credit_bytes, 1)},
      {"--merge-groups", "HOW", "mergecomp: 1, 2, 3, exact or even:GROUPS (default: 2)", text(&O::merge_groups)},
      {"--training-limits", "", "knapsack: what training allows by default, in place of the next six flags' defaults",
       [](O& o, const std::string&) {
         o.limits = plan::training_limits();
         o.slots = o.limits.max_generations;
         return true;
       }},
      {"--max-staleness-steps", "N", "knapsack: steps by which an update may be stale; 0: none (default: 16)",
       limit(&plan::PlanLimits::max_staleness_steps, 0)},
      {"--max-merged-steps", "N", "knapsack: steps whose gradients an update may merge (default: 16)",
       limit(&plan::PlanLimits::max_merged_steps, 1)},
      {"--fresh-wait-percent", "X", "knapsack: waiting for fresh updates, in percent of compute (default: 0)",
       percent(&plan::PlanLimits::fresh_tolerance)},
      {"--max-stale-percent", "X", "knapsack: of all bytes, how many may be merged or stale (default: 100)",
       percent(&plan::PlanLimits::stale_share)},
      {"--link-reserve-percent", "X", "knapsack: of the links' time, how much plans leave free (default: 2)",
       percent(&plan::PlanLimits::jitter_margin)},
      {"--slots", "N", "knapsack: generations under way at once (default: 8)", number<std::uint32_t>(&O::slots, 1)},
      {"--contention", "X", "with n busy links each is 1 + X * (n - 1) times slower (default: 0)",
       number<double>(&O::contention, 0)},
      {"--nodes", "N", "number of nodes (default: 1)", number<std::uint64_t>(&O::nodes, 1)},
      {"--jitter", "X", "relative standard deviation of compute times (default: 0)", number<double>(&O::jitter, 0)},
      {"--straggler", "X", "the last node computes X times slower (default: 1)", number<double>(&O::straggler, 0.001)},
      {"--seed", "N", "of the jitter (default: 1)", number<std::uint64_t>(&O::seed, 0)},
      {"--help", "", "print this text", [](O& o, const std::string&) { return o.help = true; }},
  };
  return kFlags;
}

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : flags())
    if (flag.name == name) return &flag;
  return nullptr;
}

tl::unexpected<Error> unknown_flag(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Flag& flag : flags()) names.push_back(flag.name);
  return fail(ErrorKind::kInvalid, "unknown flag " + std::string(name),
              did_you_mean(name, names, "deft simulate --help lists all"));
}

Result<void> check(const SimulateOptions& options) {
  if (options.help) return {};
  if (auto ok = check_policy(options.policy); !ok) return ok;
  if (options.profile_path.empty()) return fail(ErrorKind::kInvalid, "no profile is given", "deft simulate --help");
  if (warmup_steps(options) >= options.steps)
    return fail(ErrorKind::kInvalid, "--warmup leaves no steps to measure", "give more --steps");
  constexpr std::uint64_t kMaxSteps = 10'000'000;
  constexpr std::uint64_t kMaxNodes = 1'000'000;
  if (options.steps > kMaxSteps) return fail(ErrorKind::kInvalid, "--steps is above 10000000");
  if (options.nodes > kMaxNodes) return fail(ErrorKind::kInvalid, "--nodes is above 1000000");
  if (options.straggler != 1 && options.nodes < 2)
    return fail(ErrorKind::kInvalid, "--straggler needs a second node", "give --nodes 2 or more");
  return plan::check_limits(options.limits);
}

}  // namespace

Result<SimulateOptions> parse_simulate_options(std::span<const std::string> arguments) {
  SimulateOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-")) {
      if (!options.profile_path.empty())
        return fail(ErrorKind::kInvalid, "'" + argument + "' is a second profile", "give one");
      options.profile_path = argument;
      continue;
    }
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const Flag* flag = find_flag(std::string_view(argument).substr(0, equals));
    if (!flag) return unknown_flag(argument.substr(0, equals));
    const bool has_value = equals < argument.size();
    if ((flag->value.empty() && has_value) || (!flag->value.empty() && !has_value && i + 1 == arguments.size()))
      return fail(ErrorKind::kInvalid,
                  std::string(flag->name) + (flag->value.empty() ? " takes no value" : " needs a value"),
                  std::string(flag->help));
    std::string value;
    if (!flag->value.empty()) value = has_value ? argument.substr(equals + 1) : arguments[++i];
    if (!flag->set(options, value))
      return fail(ErrorKind::kInvalid, std::string(flag->name) + ": '" + value + "' cannot be used",
                  std::string(flag->help));
  }
  if (auto ok = check(options); !ok) return tl::unexpected(ok.error());
  return options;
}

std::string simulate_usage() {
  std::string out = "Usage: deft simulate PROFILE.json [--policy NAME|all] [flags]\n\n";
  for (const Flag& flag : flags()) {
    std::string left = "  " + std::string(flag.name) + (flag.value.empty() ? "" : " ") + std::string(flag.value);
    left.resize(std::max<std::size_t>(left.size() + 1, 26), ' ');
    out += left + std::string(flag.help) + "\n";
  }
  return out;
}

}  // namespace deft::tools
