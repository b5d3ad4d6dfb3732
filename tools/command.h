// The commands of `deft`. Each command has a file and a row in main.cc.
//
//   Result<int> run_status(Arguments arguments);   // returns the exit status; main prints the error
//
// Exit statuses: 0 success, 1 failure, 2 wrong usage (errors of kind kInvalid). `deft status` has 3, too: a daemon listens, and does
// not answer in time.
#pragma once

#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"

namespace deft::tools {

using Arguments = std::span<const std::string>;  // the arguments after the command's name

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoAnswer = 3;

Result<int> run_status(Arguments arguments);
Result<int> run_set(Arguments arguments);
Result<int> run_drain(Arguments arguments);
Result<int> run_doctor(Arguments arguments);
Result<int> run_check_build(Arguments arguments);
Result<int> run_keygen(Arguments arguments);
Result<int> run_options(Arguments arguments);
Result<int> run_probe(Arguments arguments);
Result<int> run_trace(Arguments arguments);
Result<int> run_replay(Arguments arguments);
Result<int> run_explain(Arguments arguments);
Result<int> run_optimize(Arguments arguments);
Result<int> run_report(Arguments arguments);

// Removes `flag` from `arguments`; true if it was there.
bool take_flag(std::vector<std::string>& arguments, std::string_view flag);

// Removes `flag` with its value, which stands behind it or behind a `=`. Nothing: it is not there. An empty text: it has no value.
std::optional<std::string> take_value(std::vector<std::string>& arguments, std::string_view flag);

// A value for programs. Replacement characters stand for bytes that are no UTF-8: names of folders may have such.
std::string json_text(const nlohmann::json& value);
void put_json(const nlohmann::json& value);  // prints it

// Before long work: the file can be made or replaced. Leaves it as it is. kInvalid if it cannot be written, or if its name is that of a
// trace: it may be one, and cannot be traced again.
Result<void> check_output(const std::string& path);
// Makes or replaces a file, which `write` fills. kInvalid, with the reason, if it cannot be written.
Result<void> write_file(const std::string& path, const std::function<void(std::ostream&)>& write);
Result<void> write_text(const std::string& path, const std::string& text);

// The configuration from `flags`, the DEFT_* variables and the flag file.
Result<Config> load_config(const std::vector<std::string>& flags);

// kInvalid for an argument that `deft COMMAND` does not know; suggests the nearest of its flags.
tl::unexpected<Error> unknown_argument(std::string_view command, std::string_view argument,
                                       std::span<const std::string_view> flags);

// kInvalid, naming the first of `arguments`, if there are any. For commands that take no further argument.
Result<void> expect_none(const std::vector<std::string>& arguments);

}  // namespace deft::tools
