// A worker's session with its daemon: the connection, and the tables that hold the daemon's answers.
//
//   auto session = Session::open(config, placement);
//   (*session)->connection().submit(shm::ReadyRecord{...});
//   (*session)->requests().wait_for(operation);
//
// connection() sends and waits. groups() knows which gradients are reduced. requests() has the answers and outcomes by number.
// starts() has the launches for in-process links. All functions may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "core/client/attach.h"
#include "core/client/connection.h"
#include "core/client/group_table.h"
#include "core/client/request_table.h"
#include "core/client/start_queues.h"

namespace deft::client {

class Session final : private ArrivalReceiver {
 public:
  // Attaches to the daemon. Blocks until all workers of the job have come.
  static Result<std::unique_ptr<Session>> open(const Config& config, const Placement& placement);
  ~Session() override { end(); }

  // Says goodbye. From now on every call fails, also calls that wait now. Returns when no thread waits any more.
  void end() { connection_.end(); }

  [[nodiscard]] const World& world() const { return connection_.attachment().world; }
  // The links that this worker runs itself, as the daemon announced them.
  [[nodiscard]] const std::vector<AnnouncedLink>& worker_links() const { return connection_.attachment().links; }
  // True if every link of the job reduces device memory, so that gradients may stay on the GPU.
  [[nodiscard]] bool on_device() const;

  Connection& connection() { return connection_; }
  GroupTable& groups() { return groups_; }
  RequestTable& requests() { return requests_; }
  StartQueues& starts() { return starts_; }

  // Tells the daemon that an in-process link has failed. The job then fails with `error`.
  void report(const Error& error);
  // `call` is called once when the job fails or the session ends, under the connection's lock. nullptr removes the callback.
  void on_failure(std::function<void(const Error&)> call);

  // Calls Connection::wait(), and counts its time as waiting for updates.
  Result<void> wait_for_update(const std::function<bool()>& done, TimeUs deadline_us) {
    has_waited_.store(true, std::memory_order_relaxed);
    return connection_.wait(done, &waited_us_, deadline_us);
  }
  // The time that this worker has waited for updates since the last call. It is taken once a stage.
  TimeUs take_waited_us() { return waited_us_.exchange(0, std::memory_order_relaxed); }
  // True if it has ever waited for updates here. Some plugins leave the waiting to their framework.
  [[nodiscard]] bool has_waited() const { return has_waited_.load(std::memory_order_relaxed); }
  // How many traces of the job have begun.
  [[nodiscard]] std::uint64_t traces() const { return traces_.load(std::memory_order_relaxed); }

 private:
  explicit Session(Attachment attachment);
  bool receive(Arrivals arrivals) override;
  Result<void> dispatch(const shm::Record& record);
  Result<void> dispatch(ipc::Packet packet);
  template <typename Message>
  Result<void> take_answer(ipc::MessageKind kind, ipc::Packet packet, std::size_t texts,
                           std::uint32_t Message::*number);

  Connection connection_;
  GroupTable groups_;
  RequestTable requests_;
  StartQueues starts_;
  std::atomic<TimeUs> waited_us_{0};
  std::atomic<bool> has_waited_{false};
  std::atomic<std::uint64_t> traces_{0};
};

}  // namespace deft::client
