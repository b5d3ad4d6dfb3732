// The daemon: listens, keeps the sessions and the jobs, and brings each message to the job it is for.
//
//   auto server = Server::open(reactor, config);
//   reactor.run();                 // until shut_down() has ended all jobs
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/base/config.h"
#include "core/ipc/message_socket.h"
#include "daemon/node/job.h"
#include "daemon/server/session.h"
#include "daemon/wire/version_gate.h"

namespace deft::daemon {

class Server final : public SessionHandler {
 public:
  // Errors: the socket or the port is in use, a path cannot be made, the links named do not exist.
  static Result<std::unique_ptr<Server>> open(Reactor& reactor, const Config& config);
  ~Server() override;

  // Takes no new jobs; stops the reactor when the running ones have ended, or after the timeout. Called again: at once.
  void shut_down();

  void session_attached(Session& session) override;
  std::string session_status() override;
  void session_ended(Session& session, const Error& reason) override;

 private:
  Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control);
  void accept();
  void on_control(const Peer& from, std::span<const std::byte> message);
  void on_other_version(const Peer& from, const wire::Received& received, const Error& error);
  void reject_control(const std::string& why);
  void on_job_ended(Job& job);
  void put_away();
  std::shared_ptr<Job> job_for(Session& session, Result<void>& result);
  void stop_if_done();

  Reactor& reactor_;
  const Config& config_;
  MemoryBudget budget_;
  ipc::Listener listener_;
  std::unique_ptr<ControlPlane> control_;
  JobContext context_;
  VersionGate versions_;
  const TimeUs started_us_;
  std::uint64_t next_incarnation_;
  std::unordered_map<Session*, std::shared_ptr<Session>> sessions_;
  std::list<std::shared_ptr<Job>> jobs_;
  std::list<std::shared_ptr<Job>> ended_;  // until their link threads have ended
  std::uint64_t jobs_served_ = 0, clients_dropped_ = 0;
  std::uint64_t control_rejected_ = 0;   // control messages that are wrong, or of another version
  std::uint64_t control_unclaimed_ = 0;  // control messages of jobs that do not run here (any more)
  bool shutting_down_ = false;
  Reactor::TimerId put_away_timer_ = 0;
};

}  // namespace deft::daemon
