// The connection to the daemon. It sends records and messages, and hands arrivals to a receiver.
//
//   Connection connection(std::move(attachment), receiver);
//   connection.submit(shm::ReadyRecord{...});
//   connection.wait([&] { return progress->finished(first, count, generation); });
//
// Threads: all functions may be called from any thread, unless a function says otherwise. One waiting thread at a time reads the
// ring and the socket, and wakes the others, so the reader needs no lock. The connection's lock guards the state of the
// receiver: the receiver and the conditions of wait() run under it. After the job has failed, every call returns its error. A
// process that was forked after attaching may not use the connection, and does not disturb it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/client/arrivals.h"
#include "core/client/attach.h"
#include "core/client/fork_guard.h"

namespace deft::client {

// Takes the arrivals. The session implements it.
class ArrivalReceiver {
 public:
  virtual ~ArrivalReceiver() = default;
  // Called under the connection's lock. True if the ring has told of an event whose text has not come over the socket yet.
  virtual bool receive(Arrivals arrivals) = 0;
};

// Writes the submission ring for many threads.
class SubmissionWriter {
 public:
  explicit SubmissionWriter(Attachment& attachment)  // must outlive this object
      : producer_(attachment.view.submission(), attachment.view.submission_records()), bell_(attachment.daemon_bell) {}
  shm::Push push(const shm::Record& record);  // wakes the daemon if it sleeps

 private:
  std::mutex mutex_;
  shm::Producer producer_;
  const shm::Doorbell& bell_;
};

// How long a text may come after its record. Normally both come at nearly the same time.
inline constexpr TimeUs kTextDueUs = 1'000'000;

// Remembers whether the job has failed, and why. The first error counts.
//
// The ring says that a job has failed, and the socket brings the text of the error. If the text does not come in time, the
// failure is reported without it. failed() may be called from any thread. For all other functions the caller holds the lock of
// the connection.
class JobFailure {
 public:
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  void fail(Error error);
  // The job has failed, and the text must come within kTextDueUs after `now_us`.
  void expect_text(TimeUs now_us);
  // If the text is overdue, fails without it. True if a text is still awaited.
  bool give_up_on_text(TimeUs now_us);

  // `call` is called once: when the job fails, or now if it has failed already. nullptr removes the callback.
  void on_failure(std::function<void(const Error&)> call);

 private:
  std::atomic<bool> failed_{false};
  std::optional<Error> error_;
  TimeUs text_due_us_ = 0;
  std::function<void(const Error&)> call_;
};

class Connection {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Connection(Attachment attachment, ArrivalReceiver& receiver);
  ~Connection() { end(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Says goodbye. From now on every call fails, also calls that wait now. Returns when no thread waits any more.
  void end();

  // An error if the job has failed, or if this process was forked and may not use the connection.
  Result<void> usable();
  [[nodiscard]] bool in_fork() const { return !fork_guard_.here(); }

  // Puts `record` into the submission ring. Waits while the ring is full, up to twice the job's timeout.
  Result<void> submit(const shm::Record& record);
  // Sends a message of messages.h.
  Result<void> send(std::span<const std::byte> bytes);

  // Waits until `done` is true, or until `deadline_us` (MonotonicClock; 0: no deadline): ask again to know which. `done` is
  // asked under the lock whenever something has come. If the job fails meanwhile, its error is returned. Adds
  // the time of the wait to `waited_us`, unless that is nullptr. That happens in here because another thread may destroy the session
  // as soon as no thread waits any more.
  Result<void> wait(const std::function<bool()>& done, std::atomic<TimeUs>* waited_us = nullptr,
                    TimeUs deadline_us = 0);
  // Takes the arrivals that are there, without waiting.
  Result<void> look();
  // Makes every thread in wait() ask its condition again.
  void nudge();

  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  // The caller holds the lock.
  [[nodiscard]] JobFailure& failure() { return failure_; }
  [[nodiscard]] const Attachment& attachment() const { return attachment_; }

 private:
  class Inside;                                    // a thread in wait(), which holds the lock
  void look_once(Lock& lock, TimeUs patience_us);  // 0: does not sleep

  Attachment attachment_;
  ForkGuard fork_guard_;  // goes before the socket, whose descriptor may then be another file's
  SubmissionWriter writer_;
  ArrivalReader reader_;  // used by the thread that looks
  ArrivalReceiver& receiver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool looking_ = false;      // a thread reads the ring and the socket
  bool texts_due_ = false;    // a text has not come over the socket yet
  std::uint32_t inside_ = 0;  // how many threads are in wait()
  JobFailure failure_;
};

}  // namespace deft::client
