// The requests of a worker over its socket once its job runs: each packet is checked, and its request goes to the job.
//
//   WorkerRequests requests(worker, connection, memory);
//   requests.serve(job);
//   if (auto ok = requests.handle(packet); !ok) ...   // the worker broke the protocol, or it has used its user's quota up: drop it
//   requests.done(operation);                        // the worker has been told
//
// A table has one row for each kind of message. Reactor thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/ipc/message_socket.h"
#include "core/ipc/messages.h"
#include "daemon/base/user_quotas.h"
#include "daemon/node/worker_port.h"
#include "daemon/server/worker_connection.h"
#include "daemon/server/worker_memory.h"

namespace deft::daemon {

class WorkerRequests {
 public:
  // `account`: of the worker. All references outlive this object.
  WorkerRequests(WorkerPort& worker, WorkerConnection& connection, WorkerMemory& memory, QuotaAccount& account)
      : worker_(worker), connection_(connection), memory_(memory), account_(account) {}

  void serve(std::weak_ptr<JobPort> job) { job_ = std::move(job); }

  // An error is the worker's fault, or the daemon's lack of memory for what the protocol needs.
  Result<void> handle(const ipc::Packet& packet, ipc::MessageKind kind);
  void done(std::uint64_t operation);  // no effect if no operation of this number is under way
  // All ranks have released the group. Its memory and its names cost nothing any more.
  void released(std::uint32_t group);
  void store_answered() { questions_ -= questions_ > 0 ? 1 : 0; }

 private:
  using Handler = Result<void> (WorkerRequests::*)(const ipc::Packet&);
  static Handler handler_of(ipc::MessageKind kind);  // null: no request
  Result<void> on_declare(const ipc::Packet& packet);
  Result<void> on_declare_tensor(const ipc::Packet& packet);
  Result<void> on_staging_buffer(const ipc::Packet& packet);
  Result<void> on_free_staging_buffer(const ipc::Packet& packet);
  Result<void> on_operation(const ipc::Packet& packet);
  Result<void> on_link_failed(const ipc::Packet& packet);
  Result<void> on_store_set(const ipc::Packet& packet);
  Result<void> on_store_get(const ipc::Packet& packet);
  Result<void> on_statistics(const ipc::Packet& packet);
  Result<void> check_store_item(const std::string& key, bool known) const;  // known: it is no more than before
  Result<void> begin_operation(std::uint64_t operation);

  WorkerPort& worker_;
  WorkerConnection& connection_;
  WorkerMemory& memory_;
  QuotaAccount& account_;
  std::weak_ptr<JobPort> job_;
  std::optional<Declaration> declaring_;  // a group whose tensors are still coming
  std::uint32_t next_group_ = 0;
  std::map<std::uint32_t, std::uint64_t> name_bytes_;        // of the groups that were declared and not released
  std::unordered_map<std::string, std::size_t> store_keys_;  // that this worker has set: the bytes of key and value
  std::size_t questions_ = 0;                                // to the store that have no answer yet
  std::unordered_set<std::uint64_t> operations_;             // under way
};

}  // namespace deft::daemon
