// The trace files of a job on this node: the newest, which is written, and older ones, which are being finished.
//
//   TraceStreams streams(recorder, offload);
//   streams.open({folder, name, header}, on_error, [&](Result<void> opened) { ... streams.newest() ... });
//   streams.end();
//
// A file is opened on another thread, because the user's folder may be on a server that does not answer. Reactor thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/trace/recorder.h"
#include "core/trace/trace_stream.h"
#include "daemon/leader/offloaded_plans.h"

namespace deft::daemon {

// Makes a writer that has a thread. Without a thread there is no file, and the job goes on.
template <typename Writer, typename... From>
Result<std::unique_ptr<Writer>> start_writer(From&&... from) {
  try {
    return std::make_unique<Writer>(std::forward<From>(from)...);
  } catch (const std::system_error& error) {
    return fail(ErrorKind::kExhausted, std::string("no thread can be started for a trace: ") + error.what(),
                "raise the limit on threads (ulimit -u, TasksMax)");
  }
}

class TraceStreams {
 public:
  struct File {
    std::string folder, name;
    trace::TraceHeader header;
    std::uint64_t most_bytes = trace::kMaxTraceBytes;
  };
  using Then = std::function<void(Result<void>)>;

  // `offload`: empty runs all at once.
  TraceStreams(std::shared_ptr<const trace::Recorder> recorder, Offload offload);

  // Calls `then` when the file is open, or cannot be, but not after this object's end. One at a time. The file gets what is recorded from
  // now on.
  void open(File file, trace::TraceStream::OnError on_error, Then then);
  // As open(): whether the folder is one that files can be made in.
  void check(std::string folder, Then then);
  [[nodiscard]] bool is_opening() const { return opening_; }

  [[nodiscard]] bool empty() const { return streams_.empty(); }
  [[nodiscard]] trace::TraceStream& newest() { return *streams_.back(); }
  // Finishes the newest one, also if it is being opened.
  void end();
  [[nodiscard]] bool all_ended() const {
    return !opening_ && std::ranges::all_of(streams_, &trace::TraceStream::ended);
  }
  // How many of all have not ended.
  std::size_t unfinished();

 private:
  template <typename Made>
  void run_elsewhere(std::function<Result<Made>()> work, std::function<void(Result<Made>)> then);
  Result<void> start(std::unique_ptr<trace::TraceWriter> writer, trace::Recorder::Cursor from,
                     trace::TraceStream::OnError on_error);

  const std::shared_ptr<const trace::Recorder> recorder_;
  const Offload offload_;
  std::vector<std::unique_ptr<trace::TraceStream>> streams_;  // the newest last
  bool opening_ = false;
  bool ends_ = false;  // the file that is being opened ends with what has been recorded by then
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace deft::daemon
