// Records what happens to a job on this node, for `DEFT_TRACE` and `deft trace dump`.
//
//   JobRecorder recorder(members, view, host);
//   recorder.begin([&](Result<void> ready) { ... });     // the job runs; DEFT_TRACE names a folder
//   recorder.stage_began(worker, record, now_us);  ...   // each event of the job
//   recorder.obey(order, [&](Result<std::string> path) { ... });   // `deft trace dump|start|stop`
//
// The newest events are always kept, in a ring of 4 MB (core/trace/recorder.h). They are written to the daemon's state folder
// (ring_dump.h) when the job fails, when it stalls, and when a user asks. If the job's option `trace` names a folder, a thread
// writes all events, or the events of the steps of the option `trace_steps`, to FOLDER/JOB-nodeN.trace; `deft trace start` does the
// same in a running job. The folder must belong to the user of this daemon: nobody makes a daemon of another user write for him.
//
// All times are by MonotonicClock, by which links and workers measure, too. The reactor's clock leaves out the time in which this process
// stood still. Reactor thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/shm/record.h"
#include "core/trace/recorder.h"
#include "daemon/channel/cpu_meter.h"
#include "daemon/channel/transfer.h"
#include "daemon/leader/scheduler_port.h"
#include "daemon/node/cores_meter.h"
#include "daemon/node/gradients.h"
#include "daemon/node/membership.h"
#include "daemon/node/ring_dump.h"
#include "daemon/node/trace_streams.h"
#include "daemon/node/view.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

// Steps first to last.
struct StepRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};
// "100-119" or "100". kInvalid for another text.
Result<StepRange> parse_step_range(const std::string& text);

class JobRecorder {
 public:
  struct Place {
    std::string host;
    std::string state_folder = {};                     // empty: nothing is written that the job's options do not name
    std::uint64_t most_bytes = trace::kMaxTraceBytes;  // of a file
    Offload offload = {};                              // for what may wait for a disk; empty: it is done at once
  };
  using Told = std::function<void(Result<std::string> path)>;

  // `members` outlives this object.
  JobRecorder(const Membership& members, std::shared_ptr<const View> view, Place place);

  // Calls `ready`, now or later: kInvalid or kUnavailable if the job wants a trace that cannot be written.
  void begin(std::function<void(Result<void>)> ready);
  // The job has ended: files are finished in the background, until finished().
  void end(bool clean);
  // Whether a file gets the events, too. Segments are recorded only then, because they would fill the ring.
  [[nodiscard]] bool is_writing() const { return !writing_.path.empty(); }
  [[nodiscard]] bool finished() const { return streams_.all_ended() && (!dumps_.newest || dumps_.newest->ended()); }

  // Tells, now or later, the path of the file that is or was written. kInvalid or kUnavailable: it cannot be.
  void obey(const wire::TraceOrder& order, const Told& told);
  void stalled(TimeUs now_us);
  // The user has set these options while the job runs. Files that begin later have them, and the file that is written
  // has a record of it.
  void settings_changed(std::map<std::string, std::string> options, TimeUs now_us);

  // Takes what the leader's schedulers have decided, and what they take the links for. Files that begin later have the newest policy of
  // each group and the newest cost of each link, too.
  void take_decisions(SchedulerPort& schedulers, TimeUs now_us);

  void declared(std::uint32_t group, const std::string& name, const Gradients& gradients);
  // All ranks have released the group: files that begin later do not have it.
  void forget(std::uint32_t group);
  void stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us);
  void gradients_ready(std::size_t worker, const shm::ReadyRecord& ready, TimeUs now_us);
  // A record of layers or memory, which a worker sends when it has heard that a trace is written.
  void memory_told(std::size_t worker, const shm::Record& record, TimeUs now_us);
  void ordered(const wire::Launch& launch, std::uint64_t number, TimeUs now_us);
  void transferred(std::size_t link, const TransferDone& done, TimeUs now_us);
  // The leader's clock showed `leader_us` between `asked_us` and `now_us` of this node's. Times that cannot be are ignored.
  void clock_answered(TimeUs asked_us, TimeUs leader_us, TimeUs now_us);

 private:
  struct Writing {  // of the newest stream, while it is written
    std::string path;
    std::set<std::size_t> told;  // workers that have heard of it

    void tell(const Membership& members, std::size_t worker);  // once for each trace
  };

  void open_stream(const std::string& path_of_folder, std::function<void(Result<void>)> then);
  void start(const wire::TraceOrder& order, const Told& told);
  Result<std::string> stop();
  Result<std::string> dump(const std::string& reason);

  const Membership& members_;
  const std::shared_ptr<const View> view_;
  const Place place_;
  const std::shared_ptr<trace::Recorder> recorder_ = std::make_shared<trace::Recorder>();
  struct Changed {                                              // while the job runs
    std::map<std::string, std::string> options = {};            // by the user
    std::map<std::uint32_t, trace::TraceRecord> policies = {};  // by group: the newest
    std::vector<trace::TraceRecord> link_costs = {};            // by link: the newest

    void add_decisions(trace::Recorder& recorder) const;
  };
  Changed changed_;
  std::vector<trace::TraceGroup> groups_;
  std::uint64_t newest_step_ = 0;  // whose forward the first local worker has begun
  struct Steps {
    std::optional<StepRange> wanted = {};   // the option's, until a file of them is begun
    std::optional<StepRange> written = {};  // that the newest file has; empty: all
  };
  Steps steps_;
  TraceStreams streams_{recorder_, place_.offload};
  Writing writing_;
  struct Dumps {
    std::unique_ptr<RingDump> newest = {};
    TimeUs stall_us = 0;  // when the newest one of a stall began
  };
  Dumps dumps_;
  struct Meters {
    CpuMeter threads{{{model::DaemonThread::kReactor, 0, CLOCK_THREAD_CPUTIME_ID},
                      {model::DaemonThread::kAll, 0, CLOCK_PROCESS_CPUTIME_ID}}};
    CoresMeter cores = {};
  };
  Meters meters_;
};

}  // namespace deft::daemon
