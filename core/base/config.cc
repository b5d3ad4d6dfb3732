#include "core/base/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "core/base/quantities.h"
#include "core/base/text.h"
#include "core/base/text_file.h"

namespace deft {
namespace {

constexpr std::string_view kPrefix = "DEFT_";
// Launchers set these, and placement.h reads them; deft optimize sets the last one, and scripts ask for it.
constexpr std::array<std::string_view, 5> kNoOptions = {"DEFT_RANK", "DEFT_WORLD_SIZE", "DEFT_LOCAL_RANK",
                                                        "DEFT_LOCAL_SIZE", "DEFT_TRY"};

const OptionSpec* find_in(std::span<const OptionSpec> table, std::string_view name) {
  const auto it = std::ranges::find(table, name, &OptionSpec::name);
  return it == table.end() ? nullptr : &*it;
}

const OptionSpec* find_option(std::string_view name) { return find_in(option_table(), name); }

std::string replaced(std::string_view text, char from, char to) {
  std::string out(text);
  std::replace(out.begin(), out.end(), from, to);
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::vector<std::string_view> split_choices(std::string_view choices) {
  std::vector<std::string_view> out;
  while (!choices.empty()) {
    const auto bar = choices.find('|');
    out.push_back(choices.substr(0, bar));
    choices = bar == std::string_view::npos ? std::string_view{} : choices.substr(bar + 1);
  }
  return out;
}

std::vector<std::string_view> names_of(std::span<const OptionSpec> table) {
  std::vector<std::string_view> names;
  for (const auto& spec : table) names.push_back(spec.name);
  return names;
}

std::string_view expectation(OptionType type) {
  switch (type) {
    case OptionType::kInteger: return "a whole number";
    case OptionType::kNumberOrOff: return "a number, or off";
    case OptionType::kBytes: return "a size, for instance 4MB";
    case OptionType::kSeconds: return "a duration, for instance 30s";
    default: return "a text";
  }
}

std::optional<double> parse_value(const OptionSpec& spec, std::string_view text) {
  switch (spec.type) {
    case OptionType::kString:
    case OptionType::kUserLimits: return 0;  // parse_user_limits() checks limits
    case OptionType::kNumberOrOff: return text == "off" ? std::optional<double>(0) : parse_number(text);
    case OptionType::kBytes: return parse_bytes(text);
    case OptionType::kSeconds: return parse_seconds(text);
    case OptionType::kInteger: {
      const auto value = parse_number(text);
      return value && *value == std::floor(*value) ? value : std::nullopt;
    }
    case OptionType::kChoice: {
      const auto choices = split_choices(spec.choices);
      const auto it = std::find(choices.begin(), choices.end(), text);
      return it == choices.end() ? std::nullopt : std::optional<double>(it - choices.begin());
    }
  }
  return std::nullopt;
}

std::string plain_number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.10g", value);
  return buffer;
}

tl::unexpected<Error> unknown_option(std::string_view shown, std::string_view suggestion) {
  return fail(
      ErrorKind::kInvalid, "unknown option " + std::string(shown),
      suggestion.empty() ? "see deftd --help for all options" : "did you mean " + std::string(suggestion) + "?");
}

// The error for a name that no row of the table has. `show` spells an option's name as a flag, a variable or a file's key.
template <typename Show>
tl::unexpected<Error> no_such_option(std::string_view name, std::string_view shown, Show show) {
  for (const auto& retired : retired_options()) {
    if (retired.name != name) continue;
    if (!retired.renamed_to.empty())
      return fail(ErrorKind::kInvalid, std::string(shown) + " has another name now",
                  "say " + show(retired.renamed_to) + " instead");
    return fail(ErrorKind::kInvalid, std::string(shown) + " is no option any more", std::string(retired.instead));
  }
  const auto near = closest(name, names_of(option_table()));
  return unknown_option(shown, near.empty() ? std::string() : show(near));
}

std::string as_flag(std::string_view name) { return "--" + replaced(name, '_', '-'); }
bool has_range(const OptionSpec& spec, std::string_view text) {
  if (text == spec.default_value) return false;  // a default may be a number with a meaning of its own
  switch (spec.type) {
    case OptionType::kInteger:
    case OptionType::kBytes:
    case OptionType::kSeconds: return true;
    case OptionType::kNumberOrOff: return text != "off";
    default: return false;
  }
}

// `text` as a number; 0 for a type without numbers. Errors begin with `where`.
Result<double> checked_value(const OptionSpec& spec, std::string_view text, const std::string& where) {
  const auto number = parse_value(spec, text);
  if (!number && spec.type == OptionType::kChoice) {
    return fail(ErrorKind::kInvalid,
                where + ": '" + std::string(text) + "' is none of " + replaced(spec.choices, '|', ' '),
                did_you_mean(lower(text), split_choices(spec.choices)));
  }
  if (!number)
    return fail(ErrorKind::kInvalid,
                where + ": '" + std::string(text) + "' is not " + std::string(expectation(spec.type)));
  if (has_range(spec, text) && (*number < spec.minimum || *number > spec.maximum))
    return fail(ErrorKind::kInvalid, where + ": " + std::string(text) + " is out of range",
                *number < spec.minimum && spec.maximum >= kNoMaximum
                    ? "at least " + plain_number(spec.minimum)
                    : "between " + plain_number(spec.minimum) + " and " + plain_number(spec.maximum));
  return *number;
}

using UserLimits = std::map<std::string, double, std::less<>>;

// One KEY=VALUE of user_limits.
Result<void> add_user_limit(UserLimits& limits, std::string_view entry, const std::string& where) {
  const auto equals = entry.find('=');
  const std::string key(trimmed(entry.substr(0, equals)));
  const OptionSpec* spec = find_in(user_limit_table(), key);
  if (!spec) {
    const auto keys = names_of(user_limit_table());
    std::string known = "the limits are";
    for (const std::string_view name : keys) known += (name == keys.front() ? " " : ", ") + std::string(name);
    return fail(ErrorKind::kInvalid, where + ": '" + key + "' is no limit", did_you_mean(key, keys, known));
  }
  if (equals == std::string_view::npos)
    return fail(ErrorKind::kInvalid, where + ": " + key + " has no value", "say " + key + "=NUMBER");
  const auto value = checked_value(*spec, trimmed(entry.substr(equals + 1)), where + ": " + key);
  if (!value) return tl::unexpected(value.error());
  if (!limits.emplace(key, *value).second) return fail(ErrorKind::kInvalid, where + ": " + key + " stands there twice");
  return {};
}

Result<UserLimits> parse_user_limits(std::string_view text, const std::string& where) {
  UserLimits limits;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    if (auto ok = add_user_limit(limits, text.substr(0, comma), where); !ok) return tl::unexpected(ok.error());
    if (more) text.remove_prefix(comma + 1);
  }
  return limits;
}

bool reads(const OptionSpec& spec, Audience audience) {
  return (static_cast<unsigned>(spec.audience) & static_cast<unsigned>(audience)) != 0;
}

}  // namespace

std::string as_variable(std::string_view option) { return std::string(kPrefix) + upper(option); }

Result<void> Config::assign(std::string_view name, std::string_view text, ConfigSource source, std::string_view where) {
  const OptionSpec* spec = find_option(name);
  auto& value = values_[std::string(name)];
  if (source < value.source) return {};
  text = trimmed(text);
  if (text.empty()) text = spec->default_value;
  double number = 0;
  if (!text.empty()) {
    const auto checked = checked_value(*spec, text, std::string(where));
    if (!checked) return tl::unexpected(checked.error());
    number = *checked;
  }
  if (spec->type == OptionType::kUserLimits)
    if (const auto limits = parse_user_limits(text, std::string(where)); !limits) return tl::unexpected(limits.error());
  value = {std::string(text), number, source};
  return {};
}

Result<void> Config::read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return fail(ErrorKind::kInvalid, "cannot read the flag file " + path, "check the path and its permissions");
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string_view text = trimmed(without_comment(line));
    if (text.empty()) continue;
    const std::string where = path + ":" + std::to_string(number);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos)
      return fail(ErrorKind::kInvalid, where + ": '" + std::string(text) + "' is no `name = value`");
    const std::string name = replaced(trimmed(text.substr(0, equals)), '-', '_');
    if (!find_option(name))
      return tl::unexpected(
          no_such_option(name, name, [](std::string_view known) { return std::string(known); }).value().in(where));
    if (name == "flag_file")
      return fail(ErrorKind::kInvalid, where + ": a flag file names no other one", "leave it out");
    if (auto ok = assign(name, text.substr(equals + 1), ConfigSource::kFile, where + ": " + name); !ok) return ok;
  }
  if (in.bad())
    return fail(ErrorKind::kInvalid, "cannot read the flag file " + path, "it is a folder, or its disk fails");
  return {};
}

namespace {

struct Assignment {
  std::string name, text, where;
};

Result<std::vector<Assignment>> parse_flags(std::span<const std::string> arguments) {
  std::vector<Assignment> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view argument = arguments[i];
    if (argument.substr(0, 2) != "--")
      return fail(ErrorKind::kInvalid, "unexpected argument '" + std::string(argument) + "'", "flags begin with --");
    argument.remove_prefix(2);
    const auto equals = argument.find('=');
    std::string name = replaced(argument.substr(0, equals), '-', '_');
    const std::string shown = "--" + std::string(argument.substr(0, equals));
    if (!find_option(name)) return no_such_option(name, shown, as_flag);
    if (equals != std::string_view::npos) {
      out.push_back({name, std::string(argument.substr(equals + 1)), shown});
    } else if (i + 1 < arguments.size()) {
      out.push_back({name, arguments[++i], shown});
    } else {
      return fail(ErrorKind::kInvalid, shown + " needs a value");
    }
  }
  return out;
}

Result<std::vector<Assignment>> parse_variables(std::span<const std::string> environment) {
  std::vector<Assignment> out;
  for (const auto& entry : environment) {
    if (!entry.starts_with(kPrefix)) continue;
    const auto equals = entry.find('=');
    const std::string variable = entry.substr(0, equals);
    const std::string name = lower(std::string_view(variable).substr(kPrefix.size()));
    if (std::ranges::find(kNoOptions, variable) != kNoOptions.end()) continue;
    if (!find_option(name)) return no_such_option(name, variable, as_variable);
    const std::string text = equals == std::string::npos ? std::string() : entry.substr(equals + 1);
    if (trimmed(text).empty()) continue;  // DEFT_POLICY=$POLICY of a shell in which POLICY is not set
    out.push_back({name, text, variable});
  }
  return out;
}

}  // namespace

Config::Config() {
  for (const auto& spec : option_table())
    if (auto ok = assign(spec.name, spec.default_value, ConfigSource::kDefault, spec.name); !ok) {
      std::fprintf(stderr, "deft: a default of the option table is wrong: %s\n", ok.error().message().c_str());
      std::abort();
    }
}

Result<Config> Config::load(std::span<const std::string> arguments, std::span<const std::string> environment,
                            Audience audience) {
  Config config;
  auto variables = parse_variables(environment);
  if (!variables) return tl::unexpected(variables.error());
  auto flags = parse_flags(arguments);
  if (!flags) return tl::unexpected(flags.error());
  for (const auto& a : *variables)
    if (auto ok = config.assign(a.name, a.text, ConfigSource::kVariable, a.where); !ok)
      return tl::unexpected(ok.error());
  for (const auto& a : *flags) {
    if (!reads(*find_option(a.name), audience))
      return fail(ErrorKind::kInvalid, a.where + " is not read here", "give it to the program that reads it");
    if (auto ok = config.assign(a.name, a.text, ConfigSource::kFlag, a.where); !ok) return tl::unexpected(ok.error());
  }
  if (config.is_set("flag_file"))
    if (auto ok = config.read_file(config.text("flag_file")); !ok) return tl::unexpected(ok.error());
  return config;
}

const Config::Value& Config::at(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) {
    std::fprintf(stderr, "deft: option %.*s is not in the table\n", static_cast<int>(name.size()), name.data());
    std::abort();
  }
  return it->second;
}

const std::string& Config::text(std::string_view name) const { return at(name).text; }
std::int64_t Config::integer(std::string_view name) const { return static_cast<std::int64_t>(at(name).number); }
double Config::number(std::string_view name) const { return at(name).number; }
std::uint64_t Config::bytes(std::string_view name) const { return static_cast<std::uint64_t>(at(name).number); }
TimeUs Config::seconds_us(std::string_view name) const { return static_cast<TimeUs>(at(name).number * 1e6); }
bool Config::is_set(std::string_view name) const { return !at(name).text.empty(); }
ConfigSource Config::source(std::string_view name) const { return at(name).source; }

std::uint64_t Config::user_limit(std::string_view key) const {
  constexpr std::string_view kOption = "user_limits";
  for (const std::string_view said : {std::string_view(text(kOption)), find_option(kOption)->default_value}) {
    const auto limits = parse_user_limits(said, std::string(kOption)).value();  // assign() has checked it
    if (const auto it = limits.find(key); it != limits.end()) return static_cast<std::uint64_t>(it->second);
  }
  std::fprintf(stderr, "deft: %.*s is no limit of a user\n", static_cast<int>(key.size()), key.data());
  std::abort();
}

std::string Config::canonical(const OptionSpec& spec) const {
  const Value& value = at(spec.name);
  switch (spec.type) {
    case OptionType::kInteger:
    case OptionType::kBytes:
    case OptionType::kSeconds: return value.text.empty() ? value.text : plain_number(value.number);
    case OptionType::kNumberOrOff: return value.text == "off" ? value.text : plain_number(value.number);
    default: return value.text;
  }
}

std::string Config::effective() const {
  static constexpr std::string_view kNames[] = {"default", "file", "variable", "flag"};
  std::string out;
  for (const auto& spec : option_table()) {
    const Value& value = at(spec.name);
    if (value.source == ConfigSource::kDefault) continue;
    if (!out.empty()) out += ' ';
    // The log and the status are read by more people than may know a token.
    out += std::string(spec.name) + "=" + (spec.name == "job_token" ? "***" : value.text) + " (" +
           std::string(kNames[static_cast<std::size_t>(value.source)]) + ")";
  }
  return out.empty() ? "all defaults" : out;
}

std::string describe_options(Audience audience) {
  std::string out;
  for (const auto& spec : option_table()) {
    if (!reads(spec, audience)) continue;
    out += "  --" + replaced(spec.name, '_', '-') + "  (" + std::string(kPrefix) + upper(spec.name) + ", default " +
           (spec.default_value.empty() ? std::string("unset") : std::string(spec.default_value)) + ")\n      " +
           std::string(spec.help) + "\n";
    if (!spec.choices.empty()) out += "      One of: " + replaced(spec.choices, '|', ' ') + "\n";
  }
  return out;
}

namespace {

std::string range_of(const OptionSpec& spec) {
  if (spec.maximum <= spec.minimum) return "";
  const bool bytes = spec.type == OptionType::kBytes;
  const auto bound = [&](double value) {
    if (!bytes) return plain_number(value);
    return value >= 1073741824.0 ? plain_number(value / 1073741824.0) + "GB" : plain_number(value / 1024) + "KB";
  };
  const std::string unit = spec.type == OptionType::kSeconds ? " seconds" : "";
  if (spec.maximum >= kNoMaximum) return spec.minimum > 0 ? " At least " + bound(spec.minimum) + unit + "." : "";
  return " Range: " + bound(spec.minimum) + " to " + bound(spec.maximum) + unit + ".";
}

std::string readers_of(const OptionSpec& spec) {
  std::string readers;
  for (const auto& [audience, name] :
       {std::pair{Audience::kDaemon, "daemon"}, {Audience::kWorker, "worker"}, {Audience::kLauncher, "launcher"}})
    if (reads(spec, audience)) readers += (readers.empty() ? "" : ", ") + std::string(name);
  return spec.audience == Audience::kAll ? "all" : readers;
}

}  // namespace

std::string options_as_markdown() {
  static constexpr std::string_view kScopes[] = {"process", "job", "job, same on all nodes"};
  std::string out = "| variable | default | read by | belongs to | meaning |\n|---|---|---|---|---|\n";
  for (const auto& spec : option_table()) {
    out += "| `" + as_variable(spec.name) + "` | " +
           (spec.default_value.empty() ? std::string("-") : "`" + std::string(spec.default_value) + "`") + " | " +
           readers_of(spec) + " | " + std::string(kScopes[static_cast<std::size_t>(spec.scope)]) + " | " +
           std::string(spec.help) + range_of(spec) +
           (spec.choices.empty() ? std::string() : " One of: " + replaced(spec.choices, '|', ' ') + ".") + " |\n";
  }
  return out;
}

}  // namespace deft
