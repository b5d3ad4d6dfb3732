// deftd: the daemon, one a node. `deftd server`: a parameter server for links ps:host:port.
#include <glog/logging.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

#include "core/ipc/daemon_socket.h"
#include "core/model/link_costs.h"
#include "daemon/base/time_slice.h"
#include "daemon/base/version.h"
#include "daemon/server/parameter_server.h"
#include "daemon/server/server.h"

namespace {

using namespace deft;
using namespace deft::daemon;

constexpr int kFailed = 1, kUsage = 2;

int complain(const Error& error, int code) {
  std::fprintf(stderr, "deftd: %s\n", error.message().c_str());
  return code;
}

void start_logging(const Config& config) {
  const std::string& level = config.text("log_level");
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = level == "error"     ? google::GLOG_ERROR
                      : level == "warning" ? google::GLOG_WARNING
                                           : google::GLOG_INFO;
  FLAGS_v = level == "debug" ? 1 : 0;
  google::InitGoogleLogging("deftd");
}

// SIGTERM and SIGINT drain; the reactor reads them as data, so that no code runs inside a signal handler.
shm::Descriptor take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return shm::Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

// What only this command line has. Options are in the table, because variables and files set them, too.
struct CommandLine {
  bool server = false;
  int ready_fd = -1;  // gets the line "ready" once the daemon is usable, for the launcher that started it
  std::vector<std::string> options;  // for Config::load
};

Result<CommandLine> parse(const std::vector<std::string>& arguments) {
  CommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (i == 0 && word == "server") {
      line.server = true;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name != "--ready-fd" && name != "--ready_fd") {
      line.options.push_back(word);
      continue;
    }
    const bool beside = equals == std::string::npos;
    const std::string text = !beside ? word.substr(equals + 1) : i + 1 < arguments.size() ? arguments[++i] : "";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), line.ready_fd);
    if (error != std::errc{} || end != text.data() + text.size() || line.ready_fd < 0)
      return fail(ErrorKind::kInvalid, name + ": '" + text + "' is no descriptor");
  }
  return line;
}

void tell_usable(int ready_fd) {
  sd_notify(0, "READY=1");
  if (ready_fd < 0) return;
  [[maybe_unused]] const auto written = write(ready_fd, "ready\n", 6);
  close(ready_fd);
}

void feed_watchdog(Reactor& reactor) {
  std::uint64_t limit_us = 0;
  if (sd_watchdog_enabled(0, &limit_us) <= 0) return;
  sd_notify(0, "WATCHDOG=1");
  reactor.after(static_cast<TimeUs>(limit_us / 2), [&reactor] { feed_watchdog(reactor); });
}

// Jobs read it anew; this finds mistakes at once.
Result<void> check_link_costs(const Config& config) {
  if (!config.is_set("link_costs")) return {};
  const auto costs = model::read_link_costs(config.text("link_costs"));
  if (!costs) return tl::unexpected(costs.error().in("option link_costs"));
  return {};
}

int serve(const Config& config, int ready_fd) {
  if (auto ok = check_link_costs(config); !ok) return complain(ok.error(), kUsage);
  Reactor reactor;
  reactor.set_spin(config.seconds_us("spin"));
  auto server = Server::open(reactor, config);
  if (!server) return complain(server.error(), kFailed);
  const shm::Descriptor signals = take_signals();
  const auto watched = reactor.watch(signals.get(), EPOLLIN, [&](std::uint32_t) {
    signalfd_siginfo info;
    while (read(signals.get(), &info, sizeof info) == sizeof info) {
      sd_notify(0, "STOPPING=1");
      (*server)->shut_down();
    }
  });
  if (!watched) return complain(watched.error(), kFailed);
  LOG(INFO) << "deftd " << kVersion << " is ready on " << ipc::socket_path(config.text("socket")) << " and "
            << config.text("listen") << "; settings: " << config.effective();
  tell_usable(ready_fd);
  feed_watchdog(reactor);
  reactor.run();
  return 0;
}

int serve_as_server(const Config& config, int ready_fd) {
  const shm::Descriptor signals = take_signals();
  const auto served = serve_parameters(config, signals.get(), [ready_fd] { tell_usable(ready_fd); });
  return served ? 0 : complain(served.error(), kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const auto& argument : arguments) {
    if (argument == "--version") return std::printf("deftd %s\n", kVersion), 0;
    if (argument == "--help" || argument == "-h")
      return std::printf(
                 "deftd [--flag=value ...]: Deft's daemon, one a node.\n"
                 "deftd server [--flag=value ...]: a parameter server for links ps:host:port, at --listen.\n\n"
                 "  --ready-fd N\n      Descriptor that gets the line `ready` once the daemon is usable, for "
                 "launchers.\n%s",
                 describe_options(Audience::kDaemon).c_str()),
             0;
  }
  const auto line = parse(arguments);
  if (!line) return complain(line.error(), kUsage);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const auto config = Config::load(line->options, environment, Audience::kDaemon);
  if (!config) return complain(config.error(), kUsage);
  start_logging(*config);
  ask_for_short_slices();
  return line->server ? serve_as_server(*config, line->ready_fd) : serve(*config, line->ready_fd);
}
