// How a job and the session of one of its workers talk: plain data, and an interface for each direction.
//
//   session -> job    JobPort      requests of the worker, checked by the session as far as one worker's word can be checked
//   job -> session    WorkerPort   the answers: arena, completions, errors
//
// So a job, and every part of it, is tested with workers that are no processes. Reactor thread only. Neither side owns
// the other: a session holds its job weakly, and a job forgets a worker when the session calls worker_ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/ipc/message_socket.h"
#include "core/ipc/messages.h"
#include "core/link/link.h"
#include "core/model/tensors.h"
#include "core/shm/layout.h"
#include "core/shm/segment.h"
#include "daemon/base/callback_owner.h"

namespace deft::daemon {

// A worker, as it has described itself in HELLO.
struct WorkerHello {
  std::string job, leader, settings, version;
  std::uint32_t rank = 0, world = 1, local_rank = 0, local_size = 1;
};

struct Declaration {  // of a group of gradients
  std::uint32_t group = 0;
  std::string name;
  std::vector<model::TensorSpec> tensors;
  std::uint32_t slots = 1;
  model::ReduceOp op = model::ReduceOp::kSum;
  std::size_t expected = 0;  // tensors announced
};

struct CollectiveRequest {  // a collective on a worker's own memory
  std::string name;         // the same on all ranks
  ipc::Operation call;
  std::shared_ptr<shm::Segment> staging_buffer;  // null for a barrier
  std::string terms = {};                        // must be the same on all ranks; words for the user
};

struct WorkerLink {  // a link that the worker runs itself
  std::uint32_t number = 0;
  link::LinkSpec spec;
  std::string prefix;  // of its keys in the store
  bool encrypts = false;
};

struct JobLinks {
  std::vector<WorkerLink> in_workers;
  std::uint32_t in_daemons = 0;
};

struct JobStart {  // news for a worker when its job runs
  std::uint32_t node = 0, nodes = 1;
  std::vector<std::uint32_t> node_of_rank;
  TimeUs timeout_us = 0, spin_us = 0, heartbeat_us = 0;
  JobLinks links;
};

class JobPort;

class WorkerPort {
 public:
  virtual ~WorkerPort() = default;
  [[nodiscard]] virtual const WorkerHello& hello() const = 0;
  [[nodiscard]] virtual const ipc::PeerIdentity& peer() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;  // "rank 3 (pid 4711)"

  // From now on requests of the worker go to `job`, which owns nothing of the worker.
  virtual void serve(const std::weak_ptr<JobPort>& job) = 0;
  // Makes the memory of the rings, which takes its time, and then calls `made`, unless the worker is gone by then.
  using RingsMade = std::function<void(Result<void>)>;
  virtual void make_rings(RingsMade made) = 0;
  // Tells the worker that the job runs. Its rings are made.
  virtual Result<void> welcome(const JobStart& start) = 0;
  // Makes the group's arena, which takes its time, tells the worker, and then calls `granted`, unless the worker is gone by then. The
  // arena lives while either side holds it.
  using ArenaGranted = std::function<void(Result<std::shared_ptr<shm::Segment>>)>;
  virtual void grant_arena(std::uint32_t group, std::uint64_t bytes, std::uint32_t buckets, ArenaGranted granted) = 0;
  virtual void complete(const shm::Record& record) = 0;  // to the completion ring; wakes the worker if it sleeps
  virtual void send_error(const Error& error, std::uint64_t operation) = 0;  // operation 0: the job failed
  virtual void send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) = 0;
  virtual void close(const Error& reason) = 0;  // drops the worker; calls JobPort::worker_ended
};

// Call it by run_for (daemon/base/callback_owner.h): the job is the owner of the callbacks and exceptions of its code.
class JobPort : public CallbackOwner {
 public:
  virtual void declare(WorkerPort& worker, Declaration declaration) = 0;
  virtual void request(WorkerPort& worker, CollectiveRequest request) = 0;
  virtual void record(WorkerPort& worker, const shm::Record& record) = 0;  // of the submission ring, unchecked
  virtual void take_statistics(WorkerPort& worker, const ipc::Statistics& statistics) = 0;
  virtual void link_failed(WorkerPort& worker, const Error& error) = 0;  // a link that the worker runs
  virtual void store_set(const std::string& key, std::span<const std::byte> value) = 0;
  virtual void store_get(WorkerPort& worker, std::uint32_t request, const std::string& key) = 0;
  // The session is over and destroyed soon after. `clean`: the worker said goodbye.
  virtual void worker_ended(WorkerPort& worker, bool clean, const Error& reason) = 0;
};

}  // namespace deft::daemon
