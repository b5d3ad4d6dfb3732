// One worker's connection: its socket, its rings, its arenas and heaps, and how it ends.
//
// The session checks everything that the worker sends and hands it on to its handler as plain data; whatever a worker
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
#include "core/link/link.h"
#include "core/model/tensors.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"
#include "daemon/base/memory_budget.h"
#include "daemon/base/reactor.h"

namespace deft::daemon {

class Session;

struct Attachment {  // what a worker said of itself in HELLO
  std::string job, leader, settings, version;
  std::uint32_t rank = 0, world = 1, local_rank = 0, local_size = 1;
};

struct Declaration {
  std::uint32_t group = 0;
  std::string name;
  std::vector<model::TensorSpec> tensors;
  std::uint32_t slots = 1;
  model::ReduceOp op = model::ReduceOp::kSum;
  std::size_t expected = 0;  // tensors announced
};

struct OperationRequest {
  std::string name;
  ipc::Operation call;
  std::shared_ptr<shm::Segment> heap;  // null for a barrier
};

struct WorkerLink {  // a link that the worker runs itself
  std::uint32_t number = 0;
  link::LinkSpec spec;
  std::string prefix;  // of its keys in the store
};

struct JobLinks {
  std::vector<WorkerLink> in_workers;
  std::uint32_t in_daemons = 0;
};

class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  virtual void session_attached(Session& session) = 0;
  virtual void session_declared(Session& session, Declaration declaration) = 0;
  virtual void session_requested(Session& session, OperationRequest request) = 0;
  virtual void session_link_failed(Session& session, const Error& error) = 0;  // a link that the worker runs
  virtual void session_store_set(Session& session, const std::string& key, std::span<const std::byte> value) = 0;
  virtual void session_store_get(Session& session, std::uint32_t request, const std::string& key) = 0;
  virtual void session_record(Session& session, const shm::Record& record) = 0;  // READY, STAGE, RAN; kind is checked
  virtual void session_statistics(Session& session, const ipc::Statistics& statistics) = 0;  // values are possible
  virtual std::string session_status() = 0;                                                  // JSON
  // The session is over; it is destroyed soon after. `clean`: the worker said goodbye.
  virtual void session_ended(Session& session, bool clean, const Error& reason) = 0;
};

class Session {
 public:
  Session(Reactor& reactor, MemoryBudget& budget, SessionHandler& handler, ipc::Channel channel,
          std::uint64_t daemon_epoch);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result<void> start();  // begins to listen; an error: the descriptor table is full

  // Makes the rings and tells the worker that the job runs. `nodes_of_ranks`: the node of each rank. `links`: those that the
  // worker runs.
  Result<void> welcome(std::uint32_t node, std::uint32_t nodes, const std::vector<std::uint32_t>& nodes_of_ranks,
                       TimeUs timeout_us, TimeUs spin_us, const JobLinks& links);
  // Makes the group's arena and tells the worker.
  Result<void> grant_arena(std::uint32_t group, std::uint64_t bytes, std::uint32_t buckets);

  void complete(const shm::Record& record);  // to the completion ring, ringing the worker's bell where it sleeps
  void send_error(const Error& error, std::uint64_t operation = 0);
  void send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value);
  void close(const Error& reason, bool clean = false);  // tells the handler

  [[nodiscard]] const Attachment& attachment() const { return attachment_; }
  [[nodiscard]] const ipc::PeerIdentity& peer() const { return peer_; }
  [[nodiscard]] const std::shared_ptr<shm::Segment>& arena(std::uint32_t group) const { return arenas_.at(group); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::string describe() const;  // "rank 3 (pid 4711)"

 private:
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
