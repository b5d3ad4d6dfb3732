// Deft's configuration: one table of options, read from flags, DEFT_* variables and a flag file.
//
// An option is one row of option_table.cc and the place that reads it. From the row come the flag (`--bucket-bytes`), the
// variable (`DEFT_BUCKET_BYTES`), the line of a flag file (`bucket_bytes = 4MB`), the checks, `--help`, the table in
// docs/configuration.md, what a worker tells its daemon, and what the nodes of a job compare. A flag wins over a variable, a
// variable over the file, the file over the default.
//
//   auto config = Config::load(arguments, environment, Audience::kDaemon);
//   if (!config) return complain(config.error());
//   config->seconds_us("timeout");
//
// A Config never changes after load and may be read by any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft {

enum class OptionType : std::uint8_t {
  kString,
  kInteger,
  kBytes,        // 4194304, 4MB, 512KB, 1GB (powers of 1024)
  kSeconds,      // 30, 30s, 500ms, 2m
  kNumberOrOff,  // 0.01, or off
  kChoice,       // one of `choices`, separated by |
  kUserLimits,   // sessions=8,memory=4GB: keys of user_limit_table()
};

// Who reads an option. A variable that another program reads is no error, because programs share their variables; a flag is.
enum class Audience : std::uint8_t { kDaemon = 1, kWorker = 2, kLauncher = 4, kAll = 7 };

// Whose choice an option is, and who must agree on it.
enum class Scope : std::uint8_t {
  kProcess,  // one daemon, worker or launcher chooses it for itself
  kJob,      // a job chooses it: a worker sends its value to the daemon, and that value wins over the daemon's own
  kAgreed,   // as kJob, and all nodes must have the same value: the leader refuses a node with another one
};

inline constexpr double kNoMaximum = 1e18;  // the maximum of an option that has none

struct OptionSpec {
  std::string_view name;  // snake_case
  OptionType type;
  std::string_view default_value;  // as a user writes it; empty: the option is unset
  std::string_view choices;        // for kChoice
  double minimum;                  // the range of a number, in the option's base unit (bytes, seconds)
  double maximum;
  Audience audience;
  Scope scope;
  std::string_view help;  // one sentence or two
};

// An option that existed once. Its use is an error that says what to do instead.
struct RetiredOption {
  std::string_view name;
  std::string_view renamed_to;  // empty: no option does the same
  std::string_view instead;     // a hint if renamed_to is empty
};

// Every option of Deft, in the order of the documentation. Both tables live as long as the process.
std::span<const OptionSpec> option_table();
std::span<const RetiredOption> retired_options();

// The keys of the option user_limits, each with its type and range. The option's default names a value for each.
std::span<const OptionSpec> user_limit_table();

// Where a value came from.
enum class ConfigSource : std::uint8_t { kDefault, kFile, kVariable, kFlag };

// DEFT_BUCKET_BYTES of bucket_bytes.
std::string as_variable(std::string_view option);

class Config {
 public:
  Config();  // each option has its default

  // `arguments` are flags without the program's name (`--timeout=3s`, `--timeout 3s`, `--flag_file=PATH`); `environment`
  // holds NAME=value strings. Everything is checked. An unknown flag, file key or DEFT_* variable is an error (kInvalid) that
  // suggests a known name; a value out of range is one, too. An empty value of a flag or of the file is the default, and an empty
  // variable is as one that is not set. The launcher's variables of placement.h are no options and are left alone.
  static Result<Config> load(std::span<const std::string> arguments, std::span<const std::string> environment,
                             Audience audience);

  // The value of the option `name`. A name that is not in the table is a bug of Deft and ends the process.
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double number(std::string_view name) const;
  [[nodiscard]] std::uint64_t bytes(std::string_view name) const;
  [[nodiscard]] TimeUs seconds_us(std::string_view name) const;  // converted to microseconds
  [[nodiscard]] bool is_set(std::string_view name) const;        // true if the value is not empty
  [[nodiscard]] ConfigSource source(std::string_view name) const;
  // What the option user_limits says of this key of user_limit_table().
  [[nodiscard]] std::uint64_t user_limit(std::string_view key) const;

  // The value in one spelling, to compare it between nodes: bytes and integers as decimal numbers, other types as given.
  [[nodiscard]] std::string canonical(const OptionSpec& spec) const;

  // The options that were set, and where: "policy=knapsack (variable) timeout=3s (flag)". For the log's first line.
  [[nodiscard]] std::string effective() const;

 private:
  struct Value {
    std::string text;
    double number = 0;
    ConfigSource source = ConfigSource::kDefault;
  };
  Result<void> assign(std::string_view name, std::string_view text, ConfigSource source, std::string_view where);
  Result<void> read_file(const std::string& path);
  [[nodiscard]] const Value& at(std::string_view name) const;
  std::map<std::string, Value, std::less<>> values_;
};

// The text that `--help` prints for `audience`; and the rows of docs/configuration.md.
std::string describe_options(Audience audience);
std::string options_as_markdown();

}  // namespace deft
