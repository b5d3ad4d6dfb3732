// A worker's session with its daemon: what goes out (records, messages) and what comes back (completions, errors).
//
//   auto session = Session::open(config, placement);
//   (*session)->submit(record);
//   (*session)->wait([&] { return progress->finished(first, count, step); });
//
// All functions may be called from any thread. One waiting thread at a time looks at the ring and the socket and tells
// the others; the rings' ends therefore need no lock of their own. After the job has failed, every call returns its
// error. A process forked from the one that opened the session may not use it, and does not disturb it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/client/attach.h"
#include "core/client/fork_guard.h"
#include "core/client/generations.h"
#include "core/ipc/messages.h"
#include "core/shm/ring.h"

namespace deft::client {

// The newest finished generation of each tensor of a group. Written by the thread that looks at the ring, read by all.
class Progress {
 public:
  explicit Progress(std::size_t tensors) : next_(tensors) {}
  [[nodiscard]] std::size_t tensors() const { return next_.size(); }
  [[nodiscard]] bool finished(std::size_t first, std::size_t count, std::uint64_t step) const;
  void finish(std::size_t first, std::size_t count, std::uint64_t step);

 private:
  std::vector<std::atomic<std::uint64_t>> next_;  // the first step that is not finished
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const Config& config, const Placement& placement);
  ~Session() { end(); }

  // Says goodbye; every call fails from now on, those under way included. Returns when nobody waits any more.
  void end();

  [[nodiscard]] const World& world() const { return attachment_.world; }

  // Puts `record` into the submission ring; waits while that is full.
  Result<void> submit(const shm::Record& record);

  // Sends a message of messages.h.
  Result<void> send(std::span<const std::byte> bytes);

  // Waits until `done` holds, which is asked under the session's lock; the error of a job that failed meanwhile. `counts`:
  // the time counts as waiting for updates.
  Result<void> wait(const std::function<bool()>& done, bool counts = false);

  // Takes in what has come, without waiting.
  Result<void> look();

  // Numbers for new operations and heaps; no operation ever has the number of a heap.
  std::uint64_t next_operation() { return operations_.fetch_add(1, std::memory_order_relaxed); }
  std::uint32_t next_heap() { return heaps_.fetch_add(1, std::memory_order_relaxed); }

  // Declarations follow each other: the holder is the only one to declare.
  std::unique_lock<std::mutex> declaring() { return std::unique_lock(declare_mutex_); }

  // The next group's number, and where its completions and plans go. Under declaring().
  std::uint32_t add_group(std::shared_ptr<Progress> progress, std::shared_ptr<Generations> generations);

  // How long this worker has waited for updates since the last call.
  TimeUs take_waited_us() {
    const Lock lock(mutex_);
    return std::exchange(waited_us_, 0);
  }

  // Waits for the answer of `kind` to what was asked with `number` (a group, an expected heap), or until `deadline_us`
  // (MonotonicClock; 0: none).
  Result<ipc::Packet> answer(ipc::MessageKind kind, std::uint32_t number, TimeUs deadline_us = 0);

  // Links that this worker runs itself: what the daemon named, the next START of one (waits; an error when the job has
  // failed or the session was ended), and where their failures are told.
  [[nodiscard]] const std::vector<AnnouncedLink>& worker_links() const { return attachment_.links; }
  // Whether gradients may stay on the GPU: every link of the job reduces them there.
  [[nodiscard]] bool on_device() const;
  [[nodiscard]] TimeUs timeout_us() const { return attachment_.timeout_us; }
  Result<shm::Record> next_start(std::uint32_t link);
  void report(const Error& error);

  // Called once when the job fails or the session ends, under the session's lock; nullptr: no more.
  void on_failure(std::function<void(const Error&)> call);

  // What becomes of an operation, or of a heap that was asked for: expect it before it is asked, forget it afterwards.
  void expect(std::uint64_t operation);
  Result<bool> finished(std::uint64_t operation);  // its own error where it failed
  Result<void> wait_for(std::uint64_t operation);
  void forget(std::uint64_t operation);

  // Whether this process may use the session and the job has not failed.
  Result<void> usable();
  [[nodiscard]] bool in_fork() const { return !fork_guard_.here(); }

 private:
  struct Outcome {
    bool done = false;
    std::optional<Error> error;
    std::uint32_t error_kind = 0;  // the ring said that it failed
    TimeUs text_due_us = 0;        // and the text must have come by then
  };
  struct Arrivals {
    std::vector<shm::Record> records;
    std::vector<ipc::Packet> packets;
    std::optional<Error> broken;  // nothing more will come
  };
  using Lock = std::unique_lock<std::mutex>;

  explicit Session(Attachment attachment);

  // One look at the ring and the socket, by the one thread that looks (arrivals.cc).
  void look_once(Lock& lock, bool may_sleep);
  Arrivals gather(TimeUs patience_us);
  void take_records(Arrivals& arrivals);
  void take_packets(Arrivals& arrivals);
  void spin(Arrivals& arrivals);
  bool sleep(TimeUs patience_us);

  // What arrived changes the state below; all under the lock (arrivals.cc).
  void dispatch(Arrivals arrivals);
  void dispatch(const shm::Record& record);
  void dispatch(ipc::Packet packet);
  void finish_tensors(const shm::FinishRecord& finished);
  template <typename PlanPart>
  void take_plan(const PlanPart& part);
  void take_start(std::uint32_t link, const shm::Record& start);
  void finish_operation(const shm::OperationDoneRecord& ended);
  void give_up_on_texts();
  void fail_job(Error error);
  Result<void> failure() const { return tl::unexpected(*failure_); }

  ForkGuard fork_guard_;
  Attachment attachment_;
  std::mutex submit_mutex_;
  shm::Producer producer_;
  std::mutex declare_mutex_;
  std::atomic<std::uint64_t> operations_{std::uint64_t{1} << 32};
  std::atomic<std::uint32_t> heaps_{1};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool looking_ = false;      // some thread looks; only that one touches the consumer and receives
  std::uint32_t inside_ = 0;  // threads in wait()
  shm::Consumer consumer_;
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};
  TimeUs failure_text_due_us_ = 0;  // the ring said that the job failed; the socket must say why by then
  bool texts_due_ = false;          // there is such a deadline, here or in outcomes_
  struct GroupState {
    std::shared_ptr<Progress> progress;
    std::shared_ptr<Generations> generations;
  };
  std::vector<GroupState> groups_;
  TimeUs waited_us_ = 0;
  std::map<std::uint32_t, std::deque<shm::Record>> starts_;  // by worker-run link
  std::function<void(const Error&)> on_failure_;
  std::unordered_map<std::uint64_t, Outcome> outcomes_;
  std::map<std::pair<ipc::MessageKind, std::uint32_t>, ipc::Packet> answers_;
};

}  // namespace deft::client
