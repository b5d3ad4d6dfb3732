#include "daemon/channel/worker_runs.h"

#include <algorithm>

namespace deft::daemon {

bool WorkerRuns::is_done(const Run& run) {
  return std::ranges::all_of(run.owed, [](std::size_t owed) { return owed == 0; });
}

void WorkerRuns::start(std::uint64_t token, std::size_t bytes, std::vector<std::vector<shm::Record>> records) {
  Run run{token, bytes, MonotonicClock::now(), std::vector<std::size_t>(workers_, 0)};
  for (std::size_t worker = 0; worker < records.size(); ++worker) run.owed[worker] = records[worker].size();
  runs_.push_back(std::move(run));
  for (std::size_t worker = 0; worker < records.size(); ++worker) {
    for (shm::Record& record : records[worker]) {
      record.operation = token;
      record.code = static_cast<std::int32_t>(link_);
      record.time_us = runs_.back().started_us;
      tell_(worker, record);
    }
  }
}

std::optional<TransferDone> WorkerRuns::take_empty() {
  const auto run = std::ranges::find_if(runs_, is_done);
  if (run == runs_.end()) return std::nullopt;
  return finish(run);
}

Result<std::optional<TransferDone>> WorkerRuns::ran(std::size_t worker, std::uint64_t token) {
  const auto run = std::ranges::find(runs_, token, &Run::token);
  if (run == runs_.end() || run->owed[worker] == 0)
    return fail(ErrorKind::kViolation, "a worker-run link ran a launch that it was not given");
  --run->owed[worker];
  if (!is_done(*run)) return std::optional<TransferDone>();
  return std::optional<TransferDone>(finish(run));
}

TransferDone WorkerRuns::finish(const std::deque<Run>::iterator& run) {
  TransferDone done;
  done.token = run->token;
  done.bytes = run->bytes;
  done.overlapped = run->started_us < last_done_us_;
  const TimeUs began_us = std::max(run->started_us, last_done_us_);
  last_done_us_ = MonotonicClock::now();
  done.busy_us = last_done_us_ - began_us;
  done.link_us = done.busy_us;
  runs_.erase(run);
  return done;
}

}  // namespace deft::daemon
