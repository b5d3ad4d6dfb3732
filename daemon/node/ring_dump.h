// Writes the newest events of a job on this node into the daemon's state folder, on a thread of its own.
//
//   RingDump dump({recorder, header, groups}, state_folder, "the job failed");
//   dump.path()              // STATE_FOLDER/traces/JOB-INCARNATION/JOB-nodeN.trace; it is there when the file is complete
//   dump.ended()             // the thread has finished, or has logged why it could not
//
// The folder of a job is the same on all nodes, so that nodes that share a disk write into one folder. Its name holds the
// incarnation, a random number that other users do not know. The folders of each user's 16 newest jobs are kept, and of all users together
// 48, from whom has most; a user gets no more than 16 within a minute.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/trace/recorder.h"
#include "core/trace/trace_file.h"

namespace deft::daemon {

// JOB-nodeN.trace. A job's name may hold characters that a file's name must not.
std::string trace_file_name(const std::string& job, std::uint32_t node);

class RingDump {
 public:
  struct Content {
    std::shared_ptr<const trace::Recorder> recorder;
    trace::TraceHeader header;
    std::vector<trace::TraceGroup> groups;
    uid_t user = 0;  // whose job it is
  };

  // Writes the events that the recorder holds now. `reason` goes into the log. The thread that adds records.
  RingDump(Content content, const std::string& state_folder, std::string reason);
  ~RingDump() { thread_.join(); }
  RingDump(const RingDump&) = delete;
  RingDump& operator=(const RingDump&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  void run();
  Result<void> write();

  const Content content_;
  const trace::Recorder::Cursor held_;  // from here ...
  const std::uint64_t until_;           // ... to here records are written
  const std::vector<trace::TraceRecord> clocks_;
  const std::string state_folder_;
  const std::string reason_;
  const std::string folder_;  // of this job's dumps
  const std::string path_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace deft::daemon
