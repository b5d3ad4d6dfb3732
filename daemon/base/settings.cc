#include "daemon/base/settings.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "core/base/policy_traits.h"
#include "core/compress/compression_option.h"
#include "core/model/link_costs.h"

namespace deft::daemon {

std::map<std::string, std::string> JobSettings::agreed() const {
  std::map<std::string, std::string> values;
  for (const auto& spec : option_table())
    if (spec.scope == Scope::kAgreed) values[std::string(spec.name)] = options.canonical(spec);
  // Equal values have one spelling.
  if (plan) values["plan"] = model::to_text(*plan);
  values["compression"] =
      (chooses_codecs ? "auto/max=" : "") + (codecs.back() ? compress::text_of(*codecs.back()) : std::string("none"));
  return values;
}

TimeUs JobSettings::heartbeat_us() const { return std::clamp<TimeUs>(timeout_us / 12, 20'000, 1'000'000); }

namespace {

Result<std::optional<model::UpdateCycles>> plan_setting(const Config& config) {
  if (!config.is_set("plan")) return std::nullopt;
  if (!find_policy(config.text("policy"))->delays_updates)
    return fail(ErrorKind::kInvalid, "the option plan is for the policy knapsack, not for " + config.text("policy"),
                "set DEFT_POLICY=knapsack, or unset DEFT_PLAN");
  auto cycles = model::parse_cycles(config.text("plan"));
  if (!cycles) return tl::unexpected(cycles.error().in("option plan"));
  return *cycles;
}

using Codec = std::shared_ptr<const compress::Codec>;

Result<Codec> usable_codec(std::string_view name) {
  auto codec = gradient_codec(name);
  if (!codec) return tl::unexpected(codec.error().in("option compression"));
  return codec;
}

struct CodecChoice {
  std::vector<Codec> codecs = {nullptr};
  bool is_planned = false;
};

Result<CodecChoice> ladder(const std::vector<std::string>& names) {
  CodecChoice choice{.codecs = {nullptr}, .is_planned = true};
  for (const std::string& name : names) {
    auto codec = usable_codec(name);
    if (!codec) return tl::unexpected(codec.error());
    if ((*codec)->traits().law == compress::Law::kLowRank)
      return fail(ErrorKind::kInvalid,
                  "option compression: plans cannot choose " + name +
                      ", because only a matrix that it has encoded tells what it leaves out",
                  "let plans choose up to int4, auto/max=int4, or name " + name + " alone");
    choice.codecs.push_back(*std::move(codec));
  }
  return choice;
}

// none, a codec's name, auto or auto/max=NAME.
Result<CodecChoice> codec_setting(const Config& config, const std::string& text) {
  const bool plans = find_policy(config.text("policy"))->delays_updates;
  if (const auto names = compress::ladder_of(text)) {
    if (!plans)
      return fail(ErrorKind::kInvalid,
                  "option compression: " + text + " lets plans choose codecs, and the policy " + config.text("policy") +
                      " makes no plans",
                  "name a codec, for instance int8, or set DEFT_POLICY=knapsack");
    return ladder(*names);
  }
  if (text == "none") return CodecChoice{};
  auto codec = usable_codec(text);
  if (!codec) return tl::unexpected(codec.error());
  return CodecChoice{{nullptr, *std::move(codec)}, false};
}

// The options of a job that someone has set as flags: the daemon's values, then the workers', which win.
Result<std::vector<std::string>> flags_of(const Config& daemon, const std::string& worker_settings) {
  const auto table = option_table();
  std::vector<std::string> flags;
  for (const auto& spec : table)
    if (spec.scope != Scope::kProcess && daemon.source(spec.name) != ConfigSource::kDefault)
      flags.push_back("--" + std::string(spec.name) + "=" + daemon.text(spec.name));
  std::istringstream lines(worker_settings);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::string name = line.substr(0, line.find('='));
    const bool of_jobs = std::ranges::any_of(
        table, [&](const OptionSpec& spec) { return spec.name == name && spec.scope != Scope::kProcess; });
    if (!of_jobs) return fail(ErrorKind::kInvalid, "'" + name + "' is no setting of a job");
    flags.push_back("--" + line);
  }
  return flags;
}

}  // namespace

Result<Codec> gradient_codec(std::string_view text) {
  auto codec = compress::make_codec(text);
  if (!codec) return tl::unexpected(codec.error());
  if ((*codec)->traits().takes_momentum)
    return fail(ErrorKind::kInvalid,
                "the codec " + std::string(text) + " brings a momentum of its own, which the optimizer has already",
                "choose int8, or topk, which keep the optimizer's");
  return Codec(*std::move(codec));
}

Result<JobSettings> job_settings(const Config& daemon, const std::string& worker_settings) {
  const auto flags = flags_of(daemon, worker_settings);
  if (!flags) return tl::unexpected(flags.error());
  auto config = Config::load(*flags, {}, Audience::kAll);
  if (!config) return tl::unexpected(config.error().in("the job's settings"));
  auto plan = plan_setting(*config);
  if (!plan) return tl::unexpected(plan.error());
  std::string compression = compress::compression_of(*config);
  auto codecs = codec_setting(*config, compression);
  if (!codecs) return tl::unexpected(codecs.error());
  JobSettings settings{.options = *config,
                       .policy = config->text("policy"),
                       .links = config->text("links"),
                       .compression = std::move(compression),
                       .codecs = std::move(codecs->codecs),
                       .chooses_codecs = codecs->is_planned,
                       .plan = *std::move(plan),
                       .link_costs = {},
                       .timeout_us = config->seconds_us("timeout"),
                       .stall_timeout_us = config->seconds_us("stall_timeout")};
  if (!daemon.is_set("link_costs")) return settings;
  auto costs = model::read_link_costs(daemon.text("link_costs"));
  if (!costs) return tl::unexpected(costs.error().in("option link_costs"));
  settings.link_costs = *std::move(costs);
  return settings;
}

}  // namespace deft::daemon
