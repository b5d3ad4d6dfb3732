// Runs the links of this worker (in-process links), each on its own thread. The thread waits for START, runs the collective
// with the other workers, and answers RAN. If START asks for segments, the thread first sends a SEGMENT record for each message
// that the link has sent or received. A link that cannot tell a lost network from a slow rank says RUNNING while it waits.
//
//   auto links = WorkerLinks::open(session, buffers);   // opens the links that WELCOME named; usually there are none
//   (*links)->add(group);                               // shared; before its first tensor is handed over
//
// A link that fails is reported to the daemon, and the job fails. When the job has failed or the session has ended, running
// collectives are aborted. The destructor waits for the threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/client/gradient_group.h"
#include "core/client/look_clock.h"
#include "core/client/session.h"
#include "core/client/staging_buffers.h"
#include "core/link/link.h"

namespace deft::client {

// The job's key-value store for a worker, which reaches it through its daemon. Links that workers run use it for their
// rendezvous. The session must outlive the store. Any thread.
class JobStore final : public link::Store {
 public:
  explicit JobStore(Session& session) : session_(session), clock_(machine_clock()) {}
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

  [[nodiscard]] bool ended() const override;                   // looks whether the daemon has said so
  [[nodiscard]] const Clock& clock() const { return clock_; }  // of get()'s deadline

  // get() in two halves: ask() sends the question, and answer() waits until `key` exists. kTimeout at `deadline_us`
  // (MonotonicClock): then answer() may be called again.
  Result<std::uint32_t> ask(const std::string& key);
  Result<std::vector<std::byte>> answer(std::uint32_t question, TimeUs deadline_us);

 private:
  Session& session_;
  const LookClock clock_;
};

class WorkerLinks {
 public:
  static Result<std::unique_ptr<WorkerLinks>> open(Session& session, StagingBuffers& buffers);
  ~WorkerLinks();  // call session.end() before
  WorkerLinks(const WorkerLinks&) = delete;
  WorkerLinks& operator=(const WorkerLinks&) = delete;

  void add(const std::shared_ptr<GradientGroup>& group);  // launches of a group that has gone are refused

 private:
  struct Runner {
    std::uint32_t number = 0;
    std::uint64_t launch = 0;  // under way
    std::unique_ptr<link::Link> link;
    std::thread thread;
  };
  WorkerLinks(Session& session, StagingBuffers& buffers) : session_(session), buffers_(buffers) {}
  Result<void> open_all();
  void start_threads();
  void run(Runner& runner);
  Result<void> execute(Runner& runner, const shm::Record& start);
  Result<link::WorkRequest> request_of(const shm::Record& start);
  Result<link::WorkRequest> request_of_collective(const shm::StartCollectiveRecord& start);
  Result<std::shared_ptr<GradientGroup>> find_group(std::uint32_t number);

  Session& session_;
  StagingBuffers& buffers_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<GradientGroup>> groups_;
};

}  // namespace deft::client
