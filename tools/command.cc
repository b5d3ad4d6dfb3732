#include "tools/command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/text.h"

namespace deft::tools {

bool take_flag(std::vector<std::string>& arguments, std::string_view flag) {
  const auto found = std::find(arguments.begin(), arguments.end(), flag);
  if (found == arguments.end()) return false;
  arguments.erase(found);
  return true;
}

std::optional<std::string> take_value(std::vector<std::string>& arguments, std::string_view flag) {
  const auto found = std::ranges::find_if(arguments, [&](const std::string& one) {
    return one.starts_with(flag) && (one.size() == flag.size() || one[flag.size()] == '=');
  });
  if (found == arguments.end()) return std::nullopt;
  const bool is_joined = found->size() > flag.size();
  std::string value = is_joined ? found->substr(flag.size() + 1) : "";
  const auto next = arguments.erase(found);
  if (is_joined || next == arguments.end()) return value;
  value = std::move(*next);
  arguments.erase(next);
  return value;
}

std::string json_text(const nlohmann::json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void put_json(const nlohmann::json& value) { std::fputs(json_text(value).c_str(), stdout); }

Result<void> check_output(const std::string& path) {
  if (std::filesystem::path(path).extension() == ".trace")
    return fail(ErrorKind::kInvalid, path + " has the name of a trace, and would replace it", "give another name");
  const bool was_there = ::access(path.c_str(), F_OK) == 0;
  if (!std::ofstream(path, std::ios::app))
    return fail(ErrorKind::kInvalid, "cannot write " + path + ": " + std::generic_category().message(errno),
                "give a file in a folder in which you may write");
  if (!was_there) ::unlink(path.c_str());
  return {};
}

Result<void> write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  if (out) write(out);
  if (out.flush()) return {};
  return fail(ErrorKind::kInvalid,
              "cannot write " + path + (errno == 0 ? "" : ": " + std::generic_category().message(errno)));
}

Result<void> write_text(const std::string& path, const std::string& text) {
  return write_file(path, [&](std::ostream& out) { out << text; });
}

Result<Config> load_config(const std::vector<std::string>& flags) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return Config::load(flags, variables, Audience::kAll);
}

tl::unexpected<Error> unknown_argument(std::string_view command, std::string_view argument,
                                       std::span<const std::string_view> flags) {
  const std::string_view name = argument.substr(0, argument.find('='));
  return fail(ErrorKind::kInvalid, "unknown argument '" + std::string(argument) + "'",
              did_you_mean(name, flags, "see deft " + std::string(command) + " --help"));
}

Result<void> expect_none(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  return fail(ErrorKind::kInvalid, "unexpected argument '" + arguments.front() + "'", "see deft --help");
}

}  // namespace deft::tools
