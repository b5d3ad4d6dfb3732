// The daemon: listens for workers and other daemons, and keeps the sessions. JobTable keeps the jobs.
//
//   auto server = Server::open(reactor, config);
//   reactor.run();                 // until shut_down() has ended all jobs
//
// Reactor thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "core/base/config.h"
#include "core/ipc/message_socket.h"
#include "daemon/server/acceptor.h"
#include "daemon/server/control_inbox.h"
#include "daemon/server/job_table.h"
#include "daemon/server/refusals.h"
#include "daemon/server/worker_session.h"

namespace deft::daemon {

// What tells this daemon from others.
struct ThisDaemon {
  std::uint64_t epoch = 0;  // a random number, so that workers notice another daemon
  TimeUs started_us = 0;
  std::string metrics = "off";  // the address of its metrics
};

class Server final : public SessionHandler {
 public:
  // Errors: the socket or the port is in use, a path cannot be made, the links named do not exist. Both references outlive it.
  static Result<std::unique_ptr<Server>> open(Reactor& reactor, const Config& config);

  // Takes no new jobs; stops the reactor when the running ones have ended, or after stop_timeout_us(). Called again: at once.
  void shut_down();
  [[nodiscard]] TimeUs stop_timeout_us() const;
  // The config has new values.
  void reconfigured() { users_.quotas->set_limits(quota_limits(config_)); }
  // Takes no new jobs, and lets the running ones go on, until it is taken back.
  void set_draining(bool draining);

  void metrics_are_at(const std::string& address) { this_.metrics = address; }  // for the status

  void session_attached(WorkerSession& session) override;
  std::string session_status(uid_t user) override;
  Result<void> change_settings(uid_t user, const std::string& job, const sched::SettingsChange& change) override {
    return jobs_.change_settings(user, job, change);
  }
  void trace(uid_t user, const std::string& job, const wire::TraceOrder& order, const TraceTold& told) override {
    jobs_.trace(user, job, order, told);
  }
  void session_ended(WorkerSession& session, const Error& reason) override;

 private:
  Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control);
  enum class Intake : std::uint8_t { kOpen, kDraining, kShuttingDown };  // of new jobs
  void take_client(ipc::MessageSocket socket);
  void turn_away(ipc::MessageSocket socket, uid_t user, const Error& error);
  void end_all();
  void stop_if_done();

  struct Users {
    std::shared_ptr<UserQuotas> quotas;
    Refusals refusals;
  };

  Reactor& reactor_;
  const Config& config_;
  MemoryBudget budget_;
  Users users_;
  std::unique_ptr<ControlPlane> control_;
  Acceptor acceptor_;
  ThisDaemon this_;
  std::unordered_map<WorkerSession*, std::shared_ptr<WorkerSession>> sessions_;
  JobTable jobs_;
  ControlInbox inbox_;
  CountsByReason clients_dropped_{};
  Intake intake_ = Intake::kOpen;
};

}  // namespace deft::daemon
