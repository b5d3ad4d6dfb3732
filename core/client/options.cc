#include "core/client/options.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "core/base/policy_traits.h"
#include "core/client/deft.h"

extern char** environ;

namespace deft::client {
namespace {

std::mutex mutex;

std::vector<std::string>& given_options() {
  static auto* options = new std::vector<std::string>;  // outlives all static destructors
  return *options;
}

// What deft_open takes besides options, and the variable that it stands for.
const std::map<std::string, std::string, std::less<>> kPlacement = {{"rank", "DEFT_RANK"},
                                                                    {"world_size", "DEFT_WORLD_SIZE"},
                                                                    {"local_rank", "DEFT_LOCAL_RANK"},
                                                                    {"local_size", "DEFT_LOCAL_SIZE"}};

Result<Config> load(const std::vector<std::string>& options) {
  std::vector<std::string> flags, variables;
  for (const auto& option : options) {
    const auto equals = option.find('=');
    if (equals == std::string::npos) return fail(ErrorKind::kInvalid, "the option '" + option + "' is no name=value");
    if (!kPlacement.contains(option.substr(0, equals))) flags.push_back("--" + option);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return Config::load(flags, variables, Audience::kWorker);
}

}  // namespace

Result<Config> open_options(const std::vector<std::string>& options) {
  const std::lock_guard lock(mutex);
  auto config = load(options);
  if (config) given_options() = options;
  return config;
}

Environment worker_environment(const std::vector<std::string>& options) {
  std::map<std::string, std::string, std::less<>> given;
  for (const auto& option : options) {
    const auto equals = option.find('=');
    const auto found = kPlacement.find(option.substr(0, equals));
    if (found != kPlacement.end()) given[found->second] = option.substr(equals + 1);
  }
  return [given = std::move(given)](const char* name) -> const char* {
    const auto found = given.find(std::string_view(name));
    return found == given.end() ? std::getenv(name) : found->second.c_str();
  };
}

Result<const char*> option_value(const std::string& name) {
  static auto* texts = new std::set<std::string>;
  const auto table = option_table();
  if (std::none_of(table.begin(), table.end(), [&](const OptionSpec& spec) { return spec.name == name; }))
    return fail(ErrorKind::kInvalid, "there is no option '" + name + "'", "docs/configuration.md lists them all");
  const std::lock_guard lock(mutex);
  auto config = load(given_options());
  if (!config) return tl::unexpected(config.error());
  return texts->insert(config->text(name)).first->c_str();
}

Result<int> policy_bits(const std::string& name) {
  const PolicyTraits* const traits = find_policy(name);
  if (!traits) return fail(ErrorKind::kInvalid, "there is no policy '" + name + "'", "deft check-build lists them all");
  return (traits->overlaps_forward ? DEFT_POLICY_OVERLAPS_FORWARD : 0) |
         (traits->delays_updates ? DEFT_POLICY_DELAYS_UPDATES : 0);
}

}  // namespace deft::client
