#include "tools/daemon_request.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/base/clock.h"
#include "core/ipc/daemon_query.h"
#include "core/ipc/daemon_socket.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 10'000'000;

// Those on which a daemon of this user listens. A deftrun that was killed leaves its folder behind.
std::vector<std::string> deftrun_sockets() {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path(error), error)) {
    if (!entry.path().filename().string().starts_with("deftrun-")) continue;
    const std::array sockets = {ipc::DaemonSocket{(entry.path() / "deftd.sock").string(), true}};
    if (ipc::connect_to_daemon(sockets)) found.push_back(sockets.front().path);
  }
  std::ranges::sort(found);
  return found;
}

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

Error with_deftruns(Error error, const std::string& socket) {
  if (!socket.empty() || error.kind != ErrorKind::kUnavailable) return error;
  std::string listed;
  const auto sockets = deftrun_sockets();
  for (const auto& path : sockets) listed += (listed.empty() ? "DEFT_SOCKET=" : " or DEFT_SOCKET=") + path;
  if (!listed.empty())
    error.fix = "deftrun has started " + std::string(sockets.size() == 1 ? "a daemon" : "daemons") + ": set " + listed;
  return error;
}

Result<std::string> ask_daemon(const Config& config, std::span<const std::byte> message) {
  const std::string& socket = config.text("socket");
  auto answer = ipc::ask_daemon(socket, message, std::min<TimeUs>(config.seconds_us("timeout"), kPatienceUs));
  if (!answer) return tl::unexpected(with_deftruns(answer.error(), socket));
  return answer;
}

}  // namespace deft::tools
