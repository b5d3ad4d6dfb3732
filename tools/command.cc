#include "tools/command.h"

#include <unistd.h>

#include <algorithm>

namespace deft::tools {

bool take_flag(std::vector<std::string>& arguments, std::string_view flag) {
  const auto found = std::find(arguments.begin(), arguments.end(), flag);
  if (found == arguments.end()) return false;
  arguments.erase(found);
  return true;
}

Result<Config> load_config(const std::vector<std::string>& flags) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return Config::load(flags, variables, Audience::kAll);
}

Result<void> expect_none(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  return fail(ErrorKind::kInvalid, "unexpected argument '" + arguments.front() + "'", "see deft --help");
}

}  // namespace deft::tools
