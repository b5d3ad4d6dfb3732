// Records what happens to a job on this node, for `DEFT_TRACE` and `deft trace dump`.
//
//   JobRecorder recorder(members, view, host);
//   if (auto ok = recorder.begin(); !ok) fail_job(ok.error());   // the job runs; DEFT_TRACE names a folder
//   recorder.stage_began(worker, record, now_us);  ...           // each event of the job
//
// The newest events are always kept, in a ring of 4 MB (core/trace/recorder.h). If the job's option `trace` names a folder,
// a thread writes all of them, or those of the steps of the option `trace_steps`, to FOLDER/JOB-nodeN.trace. The folder must
// belong to the user of this daemon: nobody makes a daemon of another user write for him. Reactor thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/shm/record.h"
#include "core/trace/recorder.h"
#include "core/trace/trace_stream.h"
#include "daemon/channel/transfer.h"
#include "daemon/node/gradients.h"
#include "daemon/node/membership.h"
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
  // `members` outlives this object.
  JobRecorder(const Membership& members, std::shared_ptr<const View> view, std::string host);

  // kInvalid or kUnavailable if the job wants a trace that cannot be written.
  Result<void> begin();
  // The job has ended: the file is finished in the background, until finished().
  void end();
  [[nodiscard]] bool finished() const { return !stream_ || stream_->ended(); }

  void declared(std::uint32_t group, const std::string& name, const Gradients& gradients);
  void stage_began(std::size_t worker, const shm::StageRecord& began, TimeUs now_us);
  void gradients_ready(std::size_t worker, const shm::ReadyRecord& ready, TimeUs now_us);
  void ordered(const wire::Launch& launch, std::uint64_t number, TimeUs now_us);
  void transferred(std::size_t link, const TransferDone& done, TimeUs now_us);
  // The leader's clock showed `leader_us` between `asked_us` and `now_us` of this node's. Times that cannot be are ignored.
  void clock_answered(TimeUs asked_us, TimeUs leader_us, TimeUs now_us);

 private:
  [[nodiscard]] trace::TraceHeader header() const;
  Result<void> open_stream();

  const Membership& members_;
  const std::shared_ptr<const View> view_;
  const std::string host_;
  const std::shared_ptr<trace::Recorder> recorder_ = std::make_shared<trace::Recorder>();
  std::vector<trace::TraceGroup> groups_;
  std::optional<StepRange> steps_;              // that are written; empty: all
  std::unique_ptr<trace::TraceStream> stream_;  // null: nothing has been written yet
};

}  // namespace deft::daemon
