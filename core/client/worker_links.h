// The links that this worker runs itself, each on a thread of its own: it waits for START, runs the collective with the
// other workers, and answers RAN.
//
//   auto links = WorkerLinks::open(session, buffers);   // opens what WELCOME named; none is usual, and then no thread either
//   (*links)->add(group);                             // before its first tensor is handed over
//
// What fails is told to the daemon, and the job fails. When the job has failed, or the session was ended, running
// collectives are aborted; the destructor waits for the threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/client/gradient_group.h"
#include "core/client/session.h"
#include "core/client/staging_buffers.h"
#include "core/link/link.h"

namespace deft::client {

class WorkerLinks {
 public:
  static Result<std::unique_ptr<WorkerLinks>> open(Session& session, StagingBuffers& buffers);
  ~WorkerLinks();  // after session.end()
  WorkerLinks(const WorkerLinks&) = delete;
  WorkerLinks& operator=(const WorkerLinks&) = delete;

  void add(GradientGroup& group);  // which outlives this

 private:
  struct Runner {
    std::uint32_t number = 0;
    std::unique_ptr<link::Link> link;
    std::thread thread;
  };
  WorkerLinks(Session& session, StagingBuffers& buffers) : session_(session), buffers_(buffers) {}
  Result<void> open_all();
  void start_threads();
  void run(Runner& runner);
  Result<void> execute(link::Link& link, const shm::Record& start);
  Result<void> execute_collective(link::Link& link, const shm::StartCollectiveRecord& start);
  Result<GradientGroup*> find_group(std::uint32_t number);

  Session& session_;
  StagingBuffers& buffers_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::mutex mutex_;
  std::map<std::uint32_t, GradientGroup*> groups_;
};

}  // namespace deft::client
