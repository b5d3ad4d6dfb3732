// One worker's connection: its socket, its rings, its arenas and heaps, and how it ends.
//
// The session checks everything that the worker sends and hands it on to its job as plain data; whatever a worker
// does wrong ends its own session only. Identity comes from the kernel; death is the socket's end or the pidfd.
// Reactor thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ipc/channel.h"
#include "core/ipc/wire.h"
#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"
#include "daemon/base/memory_budget.h"
#include "daemon/base/reactor.h"
#include "daemon/node/worker_port.h"

namespace deft::daemon {

class Session;

class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  virtual void session_attached(Session& session) = 0;  // HELLO came; gives it a job by serve(), or closes it
  virtual std::string session_status() = 0;             // JSON
  // The session is over, which its job has heard; it is destroyed soon after.
  virtual void session_ended(Session& session, const Error& reason) = 0;
};

class Session final : public WorkerPort {
 public:
  Session(Reactor& reactor, MemoryBudget& budget, SessionHandler& handler, ipc::Channel channel,
          std::uint64_t daemon_epoch);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result<void> start();  // begins to listen; an error: the descriptor table is full

  // From now on what the worker asks for goes to `job`, which owns nothing of the session.
  void serve(std::weak_ptr<JobPort> job) { job_ = std::move(job); }

  Result<void> welcome(const JobStart& start) override;
  Result<std::shared_ptr<shm::Segment>> grant_arena(std::uint32_t group, std::uint64_t bytes,
                                                    std::uint32_t buckets) override;
  void complete(const shm::Record& record) override;
  void send_error(const Error& error, std::uint64_t operation) override;
  void send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) override;
  void close(const Error& reason) override { end(reason, false); }

  [[nodiscard]] const Attachment& attachment() const override { return attachment_; }
  [[nodiscard]] const ipc::PeerIdentity& peer() const override { return peer_; }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::string describe() const override;

 private:
  void end(const Error& reason, bool clean);  // tells the job and the handler
  void on_socket();
  void on_packet(const ipc::Packet& packet);
  Result<void> dispatch(const ipc::Packet& packet);
  Result<void> on_hello(const ipc::Packet& packet);
  Result<void> on_declare(const ipc::Packet& packet);
  Result<void> on_declare_tensor(const ipc::Packet& packet);
  Result<void> on_heap(const ipc::Packet& packet);
  Result<void> on_free_heap(const ipc::Packet& packet);
  Result<void> on_operation(const ipc::Packet& packet);
  Result<void> on_link_failed(const ipc::Packet& packet);
  Result<void> on_store_set(const ipc::Packet& packet);
  Result<void> on_store_get(const ipc::Packet& packet);
  Result<void> on_statistics(const ipc::Packet& packet);
  Result<void> count_store_item();
  Result<void> on_status();
  Result<void> watch_process();
  bool drain_ring(bool about_to_sleep);
  bool flush_completions();
  Result<void> send(const std::vector<std::byte>& bytes, std::span<const int> descriptors = {});

  Reactor& reactor_;
  MemoryBudget& budget_;
  SessionHandler& handler_;
  ipc::Channel channel_;
  const std::uint64_t daemon_epoch_;
  ipc::PeerIdentity peer_;
  shm::Descriptor process_;  // pidfd
  Attachment attachment_;
  std::weak_ptr<JobPort> job_;
  bool attached_ = false;
  bool closed_ = false;

  std::shared_ptr<shm::Segment> control_;
  std::optional<shm::Consumer> submissions_;
  std::optional<shm::Producer> completions_;
  std::deque<shm::Record> overflow_;  // completions that await room in the ring, oldest first
  std::optional<shm::Doorbell> own_bell_, worker_bell_;
  Reactor::PollerId poller_ = 0;
  Reactor::TimerId retry_ = 0;  // while completions overflow: the worker rings no bell when it has read some

  std::vector<std::shared_ptr<shm::Segment>> arenas_;  // by group
  std::map<std::uint32_t, std::shared_ptr<shm::Segment>> heaps_;
  std::optional<Declaration> declaring_;
  std::uint32_t next_group_ = 0;
  std::size_t store_items_ = 0;
};

}  // namespace deft::daemon
