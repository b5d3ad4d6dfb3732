#include "tools/daemon_request.h"

#include <algorithm>

#include "core/base/clock.h"
#include "core/ipc/daemon_query.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 10'000'000;

}  // namespace

DaemonArguments split_arguments(Arguments given) {
  DaemonArguments split;
  for (auto argument = given.begin(); argument != given.end(); ++argument) {
    if (!argument->starts_with("--")) {
      split.words.push_back(*argument);
      continue;
    }
    split.flags.push_back(*argument);
    const bool has_value = argument->find('=') != std::string::npos;
    if (!has_value && std::next(argument) != given.end()) split.flags.push_back(*++argument);
  }
  return split;
}

Result<std::string> ask_daemon(const Config& config, std::span<const std::byte> message) {
  return ipc::ask_daemon(config.text("socket"), message, std::min<TimeUs>(config.seconds_us("timeout"), kPatienceUs));
}

}  // namespace deft::tools
