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
#include "daemon/server/session.h"

namespace deft::daemon {

class Server final : public SessionHandler {
 public:
  // Errors: the socket or the port is in use, a path cannot be made, the links named do not exist. Both references outlive it.
  static Result<std::unique_ptr<Server>> open(Reactor& reactor, const Config& config);

  // Takes no new jobs; stops the reactor when the running ones have ended, or after the timeout. Called again: at once.
  void shut_down();

  void session_attached(Session& session) override;
  std::string session_status() override;
  Result<void> set_policy(uid_t user, const std::string& job, const std::string& policy) override {
    return jobs_.set_policy(user, job, policy);
  }
  void session_ended(Session& session, const Error& reason) override;

 private:
  Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control);
  void take_client(ipc::MessageSocket socket);
  void end_all();
  void stop_if_done();

  Reactor& reactor_;
  const Config& config_;
  MemoryBudget budget_;
  std::unique_ptr<ControlPlane> control_;
  Acceptor acceptor_;
  const std::uint64_t daemon_epoch_;  // a random number, so that workers notice another daemon
  const TimeUs started_us_;
  std::unordered_map<Session*, std::shared_ptr<Session>> sessions_;
  JobTable jobs_;
  ControlInbox inbox_;
  std::uint64_t clients_dropped_ = 0;
  bool shutting_down_ = false;
};

}  // namespace deft::daemon
