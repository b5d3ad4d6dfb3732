#include "daemon/server/operator_signals.h"

#include <glog/logging.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "core/base/text.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kAfterStopUs = 10'000'000;  // to end by itself, once the workers have been told

Descriptor take_signals(std::initializer_list<int> numbers) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : numbers) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that has grown to the limit (ulimit -f) is an error of the write
  return Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

Descriptor take_operator_signals() { return take_signals({SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}); }

Descriptor take_stop_signals() {
  signal(SIGHUP, SIG_IGN);
  return take_signals({SIGTERM, SIGINT});
}

OperatorSignals::OperatorSignals(Reactor& reactor, Server& server, LiveConfig& live, Descriptor blocked)
    : reactor_(reactor), server_(server), live_(live), descriptor_(std::move(blocked)) {}

OperatorSignals::~OperatorSignals() { reactor_.unwatch(descriptor_.get()); }

Result<void> OperatorSignals::start() {
  return reactor_.watch(descriptor_.get(), EPOLLIN, [this](std::uint32_t) {
    signalfd_siginfo info;
    while (read(descriptor_.get(), &info, sizeof info) == sizeof info) take(static_cast<int>(info.ssi_signo));
  });
}

void OperatorSignals::take(int signal) {
  switch (signal) {
    case SIGHUP: return reload();
    case SIGUSR1: return server_.set_draining(true);
    case SIGUSR2: return server_.set_draining(false);
    default: return stop();
  }
}

// systemd waits for as long as this daemon says that it needs, whatever TimeoutStopSec is.
void OperatorSignals::stop() {
  sd_notify(0, ("STOPPING=1\nEXTEND_TIMEOUT_USEC=" + std::to_string(server_.stop_timeout_us() + kAfterStopUs)).c_str());
  server_.shut_down();
}

void OperatorSignals::reload() {
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(MonotonicClock::now())).c_str());
  if (const auto kept = live_.reload(); !kept) {
    LOG(ERROR) << "the configuration stays as it was: " << kept.error().message();
  } else {
    set_log_level(live_.config());
    reactor_.set_spin(live_.config().seconds_us("spin"));
    server_.reconfigured();
    LOG(INFO) << "new jobs get these settings: " << live_.config().effective();
    LOG_IF(WARNING, !kept->empty()) << "restart deftd for the new value of " << joined(*kept, ", ");
  }
  sd_notify(0, "READY=1");
}

}  // namespace deft::daemon
