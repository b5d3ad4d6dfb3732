// The commands of the operator to a running daemon, by signals. The kernel sees to it that only root and the daemon's own user may.
//
//   SIGTERM, SIGINT   stop: no new jobs. Running jobs have 30 s, at most the timeout, and then get an error. A second signal: at once
//   SIGHUP            read the configuration anew; nothing ends
//   SIGUSR1           drain: no new jobs; running jobs go on (deft drain)
//   SIGUSR2           take new jobs again (deft drain --undo)
//
//   Descriptor blocked = take_operator_signals();   // before any thread is made
//   OperatorSignals signals(reactor, server, live, std::move(blocked));
//   if (auto ok = signals.start(); !ok) ...
//
// The signals are read as data, so that no code runs inside a signal handler. Threads inherit which signals are blocked: a thread that
// was made before, also by a library, would take a signal, and the process would end. Reactor thread.
#pragma once

#include "core/base/descriptor.h"
#include "core/shm/segment.h"
#include "daemon/base/reactor.h"
#include "daemon/server/live_config.h"
#include "daemon/server/server.h"

namespace deft::daemon {

class OperatorSignals {
 public:
  // All references outlive this object. `blocked`: of take_operator_signals().
  OperatorSignals(Reactor& reactor, Server& server, LiveConfig& live, Descriptor blocked);
  ~OperatorSignals();
  OperatorSignals(const OperatorSignals&) = delete;
  OperatorSignals& operator=(const OperatorSignals&) = delete;

  Result<void> start();  // an error: the kernel cannot watch one more descriptor

 private:
  void take(int signal);
  void stop();
  void reload();

  Reactor& reactor_;
  Server& server_;
  LiveConfig& live_;
  const Descriptor descriptor_;
};

// Blocks all signals of an operator and gives a descriptor that they are read from.
Descriptor take_operator_signals();

// Blocks SIGTERM and SIGINT and gives a descriptor that they are read from; SIGHUP is ignored. For a parameter server.
Descriptor take_stop_signals();

}  // namespace deft::daemon
