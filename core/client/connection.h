// The way to the daemon and back: records and messages go out, and arrivals come in to a receiver.
//
//   Connection connection(std::move(attachment), receiver);
//   connection.submit(shm::ReadyRecord{...});
//   connection.wait([&] { return progress->finished(first, count, generation); });
//
// Threads: all functions may be called from any thread, unless a function says otherwise. One waiting thread at a time
// looks at the ring and the socket, and wakes the others; so the reader needs no lock of its own. The receiver's state
// has one lock, the connection's: the receiver and the conditions of wait() run under it. After the job has failed,
// every call returns its error. A process that was forked from the one that attached may not use the connection, and
// does not disturb it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>

#include "core/client/arrivals.h"
#include "core/client/attach.h"
#include "core/client/fork_guard.h"
#include "core/client/job_failure.h"

namespace deft::client {

class ArrivalReceiver {
 public:
  virtual ~ArrivalReceiver() = default;
  // Under the connection's lock. True: the socket still owes the text of something that the ring said.
  virtual bool receive(Arrivals arrivals) = 0;
};

// The submission ring, for many threads.
class RecordWriter {
 public:
  explicit RecordWriter(Attachment& attachment)  // outlives this
      : producer_(attachment.view.submission(), attachment.view.submission_records()), bell_(attachment.daemon_bell) {}
  shm::Push push(const shm::Record& record);  // wakes the daemon if it sleeps

 private:
  std::mutex mutex_;
  shm::Producer producer_;
  const shm::Doorbell& bell_;
};

class Connection {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Connection(Attachment attachment, ArrivalReceiver& receiver);
  ~Connection() { end(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Says goodbye; every call fails from now on, those under way included. Returns when nobody waits any more.
  void end();

  // An error if this process may not use the connection, or if the job has failed.
  Result<void> usable();
  [[nodiscard]] bool in_fork() const { return !fork_guard_.here(); }

  // Puts `record` into the submission ring. Waits while the ring is full, up to twice the job's timeout.
  Result<void> submit(const shm::Record& record);
  // Sends a message of messages.h.
  Result<void> send(std::span<const std::byte> bytes);

  // Waits until `done` holds, which is asked under the lock whenever something has come; or the error of a job that
  // failed meanwhile. Adds the time that it took to `waited_us` unless that is null: in here, because another thread may
  // end the session and destroy it as soon as nobody waits any more.
  Result<void> wait(const std::function<bool()>& done, std::atomic<TimeUs>* waited_us = nullptr);
  // Takes in what has come, without waiting.
  Result<void> look();
  // Makes every thread in wait() ask its condition again.
  void nudge();

  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  // Under the lock.
  [[nodiscard]] JobFailure& failure() { return failure_; }
  [[nodiscard]] const Attachment& attachment() const { return attachment_; }

 private:
  void look_once(Lock& lock, bool may_sleep);

  ForkGuard fork_guard_;
  Attachment attachment_;
  RecordWriter writer_;
  ArrivalReader reader_;  // of the thread that looks
  ArrivalReceiver& receiver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool looking_ = false;      // some thread looks
  bool texts_due_ = false;    // the socket owes a text
  std::uint32_t inside_ = 0;  // threads in wait()
  JobFailure failure_;
};

}  // namespace deft::client
