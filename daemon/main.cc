// deftd: the daemon, one a node. `deftd server`: a parameter server for links ps:host:port.
#include <glog/logging.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/numbers.h"
#include "core/ipc/daemon_socket.h"
#include "daemon/base/log_lines.h"
#include "daemon/base/process_setup.h"
#include "daemon/base/version.h"
#include "daemon/http/observer.h"
#include "daemon/server/live_config.h"
#include "daemon/server/operator_signals.h"
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

// What only this command line has. Options are in the table, because variables and files set them, too.
struct CommandLine {
  bool server = false;
  bool check_only = false;
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
    if (word == "--check-config" || word == "--check_config") {
      line.check_only = true;
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
    line.ready_fd = parse_whole<int>(text).value_or(-1);
    if (line.ready_fd < 0)
      return fail(ErrorKind::kInvalid, name + ": '" + text + "' is no descriptor",
                  "give the number of one that is open");
  }
  return line;
}

void report_usable(int ready_fd) {
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

// Serves metrics, if the options want it. Null: they do not.
Result<std::unique_ptr<Observer>> observe(const Config& config, Reactor& reactor, Server& server) {
  const std::string& address = config.text("metrics");
  if (address == "off") return nullptr;
  auto observer = Observer::open(address, reactor, [&server] { return server.session_status(geteuid()); });
  if (!observer) return observer;
  server.metrics_are_at((*observer)->address());
  return observer;
}

int serve(LiveConfig& live, int ready_fd) {
  const Config& config = live.config();
  if (auto ok = check_link_costs(config); !ok) return complain(ok.error(), kUsage);
  Descriptor blocked = take_operator_signals();  // ZeroMQ's threads inherit it
  Reactor reactor;
  reactor.set_spin(config.seconds_us("spin"));
  auto server = Server::open(reactor, config);
  if (!server) return complain(server.error(), kFailed);
  OperatorSignals signals(reactor, **server, live, std::move(blocked));
  if (auto ok = signals.start(); !ok) return complain(ok.error(), kFailed);
  const auto observer = observe(config, reactor, **server);
  if (!observer) return complain(observer.error(), kFailed);
  LOG(INFO) << "deftd " << kVersion << " is ready on " << ipc::socket_path(config.text("socket")) << " and "
            << config.text("listen") << "; settings: " << config.effective();
  LOG_IF(INFO, *observer != nullptr) << "metrics are on http://" << (*observer)->address() << "/metrics";
  report_usable(ready_fd);
  feed_watchdog(reactor);
  reactor.run();
  // Files of traces may take a while. systemd gives less time than deftrun (daemon/server/operator_signals.cc).
  end_at_the_latest(std::getenv("NOTIFY_SOCKET") != nullptr ? 9 : 20);
  return 0;
}

int check(const Config& config) {
  start_logging(config);  // it may warn
  if (auto ok = check_config(config); !ok) return complain(ok.error(), kUsage);
  std::printf("the configuration is right; settings: %s\n", config.effective().c_str());
  return 0;
}

int serve_as_server(const Config& config, int ready_fd) {
  const Descriptor signals = take_stop_signals();
  const auto served = serve_parameters(config, signals.get(), [ready_fd] { report_usable(ready_fd); });
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
                 "  --check-config\n      Says what is wrong with the configuration, and ends: 0 nothing, 2 "
                 "something.\n"
                 "  --ready-fd N\n      Descriptor that gets the line `ready` once the daemon is usable, for "
                 "launchers.\n%s",
                 describe_options(Audience::kDaemon).c_str()),
             0;
  }
  const auto line = parse(arguments);
  if (!line) return complain(line.error(), kUsage);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  auto live = LiveConfig::load(line->options, environment);
  if (!live) return complain(live.error(), kUsage);
  if (line->check_only) return check(live->config());
  make_room_for_descriptors();
  keep_large_buffers_off_the_heap();
  start_logging(live->config());
  ask_for_short_slices();
  return line->server ? serve_as_server(live->config(), line->ready_fd) : serve(*live, line->ready_fd);
}
