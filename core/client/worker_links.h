// The links that this worker runs itself, each on a thread of its own: it waits for START, runs the collective with the
// other workers, and answers RAN.
//
//   auto links = WorkerLinks::open(session, heaps);   // opens what WELCOME named; none is usual, and then no thread either
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

#include "core/client/gradients.h"
#include "core/client/heaps.h"
#include "core/client/session.h"
#include "core/link/link.h"

namespace deft::client {

class WorkerLinks {
 public:
  static Result<std::unique_ptr<WorkerLinks>> open(Session& session, Heaps& heaps);
  ~WorkerLinks();  // after session.end()
  WorkerLinks(const WorkerLinks&) = delete;
  WorkerLinks& operator=(const WorkerLinks&) = delete;

  void add(Group& group);  // which outlives this

 private:
  struct Runner {
    std::uint32_t number = 0;
    std::unique_ptr<link::Link> link;
    std::thread thread;
  };
  WorkerLinks(Session& session, Heaps& heaps) : session_(session), heaps_(heaps) {}
  Result<void> open_all();
  void start_threads();
  void run(Runner& runner);
  Result<void> execute(link::Link& link, const shm::Record& start);
  Result<void> execute_collective(link::Link& link, const shm::StartCollectiveRecord& start);
  Result<Group*> find_group(std::uint32_t number);

  Session& session_;
  Heaps& heaps_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::mutex mutex_;
  std::map<std::uint32_t, Group*> groups_;
};

}  // namespace deft::client
