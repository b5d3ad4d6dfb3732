// deft drain: this node's daemon takes no new jobs; waits until running jobs have ended. deft drain --undo takes it back.
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "core/base/text.h"
#include "core/ipc/daemon_socket.h"
#include "tools/command.h"
#include "tools/daemon_status.h"

namespace deft::tools {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(200);
constexpr TimeUs kPatienceUs = 10'000'000;

Result<void> tell(const std::string& socket, int signal) {
  const auto daemon = ipc::connect_to_daemon(ipc::daemon_sockets(socket));
  if (!daemon) return tl::unexpected(daemon.error());
  const auto peer = daemon->channel.peer();
  if (!peer) return tl::unexpected(peer.error());
  if (peer->pid <= 0)
    return fail(ErrorKind::kUnavailable, "the daemon at " + daemon->path + " runs in another process namespace",
                "send it SIGUSR1 there to drain it, SIGUSR2 to undo that");
  if (kill(peer->pid, signal) == 0) return {};
  const bool forbidden = errno == EPERM;
  return fail(forbidden ? ErrorKind::kUnavailable : ErrorKind::kLost,
              "cannot tell the daemon, pid " + std::to_string(peer->pid) + ": " + std::strerror(errno),
              forbidden ? "only root and the daemon's own user may drain it" : "");
}

std::string names_of(const nlohmann::json& jobs) {
  return joined(jobs, ", ", [](const nlohmann::json& job) { return text_of(job, "name", "-"); });
}

// Until the daemon's status says so, because a signal has no answer.
Result<DaemonStatus> wait_for(const std::string& socket, bool takes_jobs, bool without_jobs) {
  std::string told;
  while (true) {
    auto daemon = query_daemon(socket, kPatienceUs);
    if (!daemon) return daemon;
    const auto jobs = list_of(daemon->json, "jobs");
    if (flag_of(daemon->json, "takes_jobs", !takes_jobs) == takes_jobs) {
      if (!without_jobs || jobs.empty()) return daemon;
      const std::string names = names_of(jobs);
      if (names != told) std::printf("waiting for %zu jobs: %s\n", jobs.size(), names.c_str());
      std::fflush(stdout);
      told = names;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace

Result<int> run_drain(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const bool undo = take_flag(arguments, "--undo");
  const bool wait = !take_flag(arguments, "--no-wait");
  const auto config = load_config(arguments);
  if (!config) return tl::unexpected(config.error());
  const std::string& socket = config->text("socket");
  if (auto ok = tell(socket, undo ? SIGUSR2 : SIGUSR1); !ok) return tl::unexpected(ok.error());
  const auto after = wait_for(socket, undo, wait && !undo);
  if (!after) return tl::unexpected(after.error().in("deft drain"));
  const auto jobs = list_of(after->json, "jobs");
  if (undo) {
    std::printf("the daemon at %s takes new jobs\n", after->path.c_str());
  } else {
    std::printf("the daemon at %s takes no new jobs; %zu run\n", after->path.c_str(), jobs.size());
  }
  return kExitOk;
}

}  // namespace deft::tools
