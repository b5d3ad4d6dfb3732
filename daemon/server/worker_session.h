// One worker's session: HELLO, then the job's answers to it and its requests to the job, and how it ends.
//
//   auto session = std::make_shared<WorkerSession>(reactor, {budget, account}, handler, std::move(socket), daemon_epoch);
//   run_for(session, "a new client", [&] { session->start(); });   // exceptions of its callbacks end the session only
//
// The parts: WorkerConnection (socket, process), WorkerRequests (table of messages), WorkerMemory (rings, arenas, staging
// buffers), RingPump (the records of the rings, once the job runs). Everything that the worker sends is checked; whatever a worker
// does wrong ends its own session only. Identity comes from the kernel; death is the socket's end or the pidfd. Reactor
// thread only.
#pragma once

#include <memory>
#include <string>

#include "core/ipc/message_socket.h"
#include "daemon/base/memory_budget.h"
#include "daemon/base/reactor.h"
#include "daemon/node/worker_port.h"
#include "daemon/server/job_commands.h"
#include "daemon/server/ring_pump.h"
#include "daemon/server/worker_connection.h"
#include "daemon/server/worker_memory.h"
#include "daemon/server/worker_requests.h"

namespace deft::daemon {

class WorkerSession;

class SessionHandler : public JobCommands {
 public:
  virtual void session_attached(WorkerSession& session) = 0;  // HELLO came; gives it a job by serve(), or closes it
  virtual std::string session_status(uid_t user) = 0;         // what this user may see, as JSON
  // The session is over, which its job has heard; it is destroyed soon after.
  virtual void session_ended(WorkerSession& session, const Error& reason) = 0;
};

class WorkerSession final : public WorkerPort,
                            public CallbackOwner,
                            public std::enable_shared_from_this<WorkerSession> {
 public:
  struct Means {
    const MemoryBudget& budget;
    std::shared_ptr<QuotaAccount> account;  // of the client's user; holds a connection and its descriptor
  };
  static constexpr std::uint64_t kWorkerDescriptors = 2;  // beside the socket: the process and a doorbell

  // All references outlive this object.
  WorkerSession(Reactor& reactor, const Means& means, SessionHandler& handler, ipc::MessageSocket socket,
                std::uint64_t daemon_epoch);

  Result<void> start() { return connection_.start(); }  // begins to listen; an error: the descriptor table is full

  void serve(const std::weak_ptr<JobPort>& job) override;
  void make_rings(RingsMade made) override;
  Result<void> welcome(const JobStart& start) override;
  void grant_arena(std::uint32_t group, std::uint64_t bytes, std::uint32_t buckets, ArenaGranted granted) override;
  void complete(const shm::Record& record) override;
  void send_error(const Error& error, std::uint64_t operation) override {
    connection_.send_error(error, operation);
    requests_.done(operation);
  }
  void send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) override;
  void close(const Error& reason) override { end(reason, false); }
  void callback_failed(const Error& error) override { drop(error); }

  [[nodiscard]] const WorkerHello& hello() const override { return hello_; }
  [[nodiscard]] const ipc::PeerIdentity& peer() const override { return connection_.peer(); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::string describe() const override;

 private:
  void end(const Error& reason, bool clean);  // tells the job and the handler
  void drop(const Error& error);              // tells the worker why, and ends
  Result<void> dispatch(const ipc::Packet& packet);
  Result<void> on_hello(const ipc::Packet& packet);
  Result<void> send_status();
  Result<void> on_command(const ipc::Packet& packet);

  Reactor& reactor_;
  const Means means_;
  SessionHandler& handler_;
  const std::uint64_t daemon_epoch_;
  WorkerConnection connection_;
  WorkerMemory memory_;
  WorkerRequests requests_;
  std::unique_ptr<RingPump> rings_;  // null: the job does not run yet
  std::weak_ptr<JobPort> job_;
  WorkerHello hello_;
  bool attached_ = false;
  bool closed_ = false;
};

}  // namespace deft::daemon
