// Writes a recorder's records into a file while they come, on a thread of its own.
//
//   TraceStream stream(recorder, *std::move(writer), [](const Error& error) { ... });   // from now on; the thread that adds records
//   stream.add(group);                    // a group of gradients; from any thread
//   stream.end();                         // what comes later is not written; the thread finishes the file ...
//   if (stream.ended()) ...               // ... until then; the destructor waits for it
//
// A disk that is slow or full costs records, never a step: the recorder goes on, and the file says how many are missing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/trace/recorder.h"
#include "core/trace/trace_file.h"

namespace deft::trace {

class TraceStream {
 public:
  // Called on the stream's thread, at most once: nothing more is written.
  using OnError = std::function<void(const Error&)>;

  // Writes what `from` has not seen yet.
  TraceStream(std::shared_ptr<const Recorder> recorder, std::unique_ptr<TraceWriter> writer, Recorder::Cursor from,
              OnError on_error);
  ~TraceStream();
  TraceStream(const TraceStream&) = delete;
  TraceStream& operator=(const TraceStream&) = delete;

  void add(TraceGroup group);
  void end();
  [[nodiscard]] bool ended() const { return ended_; }
  // False once something could not be written: the disk was too slow or full, or the file has grown too long.
  [[nodiscard]] bool is_whole() const { return is_whole_; }

 private:
  void run();
  Result<void> write(const std::vector<TraceGroup>& groups, std::uint64_t until);

  const std::shared_ptr<const Recorder> recorder_;
  const std::unique_ptr<TraceWriter> writer_;
  const OnError on_error_;
  // To be written next. At first the newest answers of the leader's clock: one comes a heartbeat, and a trace may be shorter.
  std::vector<TraceRecord> records_;
  Recorder::Cursor cursor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TraceGroup> groups_;  // not written yet
  bool ending_ = false;
  std::uint64_t last_ = ~std::uint64_t{0};  // records before it belong to the trace
  std::atomic<bool> ended_{false}, is_whole_{true};
  std::thread thread_;
};

}  // namespace deft::trace
