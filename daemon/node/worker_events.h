// Brings the requests of the workers of a job to the part of the job that they are for.
//
// A worker that breaks the rules is dropped with the reason, and its end then ends the job. If workers contradict each other, the
// job fails at once. Before a job runs, and after it has ended, requests are ignored. Reactor thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/node/job_control.h"
#include "daemon/node/job_parts.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/membership.h"
#include "daemon/node/worker_port.h"

namespace deft::daemon {

class WorkerEvents final : public JobPort {
 public:
  // `parts`: null until the job has a view. All references outlive this object.
  WorkerEvents(Membership& members, const std::unique_ptr<JobParts>& parts, LeaderPort& leader, JobControl& control,
               std::string host)
      : members_(members), parts_(parts), leader_(leader), control_(control), host_(std::move(host)) {}

  void declare(WorkerPort& worker, Declaration declaration) override;
  void request(WorkerPort& worker, CollectiveRequest request) override;
  void record(WorkerPort& worker, const shm::Record& record) override;
  void take_statistics(WorkerPort& worker, const ipc::Statistics& statistics) override;
  void link_failed(WorkerPort& worker, const Error& error) override;
  void store_set(const std::string& key, std::span<const std::byte> value) override;
  void store_get(WorkerPort& worker, std::uint32_t request, const std::string& key) override;
  void worker_ended(WorkerPort& worker, bool clean, const Error& reason) override;
  void callback_failed(const Error& error) override { control_.fail(error.in("on " + host_)); }

 private:
  // Calls act(local index) for a worker of a job that runs.
  template <typename Act>
  void if_running(WorkerPort& worker, const Act& act);
  Result<void> take(std::size_t worker, const shm::Record& record);
  Result<void> take_of_link(std::size_t worker, const shm::Record& record);

  Membership& members_;
  const std::unique_ptr<JobParts>& parts_;
  LeaderPort& leader_;
  JobControl& control_;
  const std::string host_;
};

}  // namespace deft::daemon
