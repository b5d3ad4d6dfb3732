#include "daemon/channel/in_process_driver.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace deft::daemon {

InProcessDriver::InProcessDriver(Reactor& reactor, std::uint32_t link, std::size_t workers, MakeRecords make_records,
                                 PutRecord put_record, const OnOpen& on_open, OnDone on_done)
    : reactor_(reactor),
      link_(link),
      workers_(workers),
      make_records_(std::move(make_records)),
      put_record_(std::move(put_record)),
      on_done_(std::move(on_done)),
      alive_(std::make_shared<bool>(true)) {
  post([on_open] { on_open({}); });  // the workers open it themselves, once they are welcomed
}

void InProcessDriver::post(std::function<void()> callback) {
  reactor_.post([weak = std::weak_ptr(alive_), callback = std::move(callback)] {
    if (!weak.expired()) callback();
  });
}

void InProcessDriver::abort(const std::string& /*reason*/) {
  alive_.reset();
  runs_.clear();
}

bool InProcessDriver::is_done(const Run& run) {
  return std::ranges::all_of(run.owed, [](std::size_t owed) { return owed == 0; });
}

void InProcessDriver::start(const SubCommTask& launch) {
  if (!alive_) return;
  const Records records = make_records_(launch);
  Run run{launch.number, 0, reactor_.now_us(), std::vector<std::size_t>(workers_, 0)};
  for (std::size_t worker = 0; worker < records.size(); ++worker) run.owed[worker] = records[worker].size();
  for (const Start& start : records.front())
    run.bytes += std::visit([](const auto& record) { return record.bytes; }, start);
  // Later: whoever starts launches is still looking at its queue.
  if (is_done(run)) post([this, token = launch.number] { finish_empty(token); });
  const auto put = [&](std::size_t worker, auto record) {
    record.launch = launch.number;
    record.link = link_;
    put_record_(worker, record);
  };
  for (std::size_t worker = 0; worker < records.size(); ++worker)
    for (const Start& start : records[worker]) std::visit([&](const auto& record) { put(worker, record); }, start);
  runs_.push_back(std::move(run));
}

// A launch that has nothing to send, as a barrier, ends by itself.
void InProcessDriver::finish_empty(std::uint64_t token) {
  const auto run = std::ranges::find(runs_, token, &Run::token);
  if (run != runs_.end()) finish(run);
}

Result<void> InProcessDriver::answered(std::size_t worker, std::uint64_t token) {
  const auto run = std::ranges::find(runs_, token, &Run::token);
  if (run == runs_.end() || run->owed[worker] == 0)
    return fail(ErrorKind::kViolation, "an in-process link ran a launch that it was not given");
  --run->owed[worker];
  if (is_done(*run)) finish(run);
  return {};
}

void InProcessDriver::finish(const std::deque<Run>::iterator& run) {
  TransferDone done;
  done.token = run->token;
  done.bytes = done.wire_bytes = run->bytes;
  done.overlapped = run->started_us < last_done_us_;
  const TimeUs began_us = std::max(run->started_us, last_done_us_);
  last_done_us_ = reactor_.now_us();
  done.busy_us = last_done_us_ - began_us;
  done.link_us = done.busy_us;
  done.spans.push_back({trace::TransferStage::kLink, began_us, last_done_us_});
  runs_.erase(run);
  on_done_(std::move(done));
}

}  // namespace deft::daemon
