#include "daemon/channel/in_process_driver.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace deft::daemon {

InProcessDriver::InProcessDriver(Reactor& reactor, std::uint32_t link, Members members, MakeRecords make_records,
                                 PutRecord put_record, const OnOpen& on_open, OnDone on_done)
    : reactor_(reactor),
      link_(link),
      members_(std::move(members)),
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

InProcessDriver::Run InProcessDriver::prepare(const SubCommTask& launch, const Records& records) const {
  Run run{launch.number, 0, reactor_.now_us(), std::vector<std::size_t>(members_.ranks.size(), 0), {}, {}, {}};
  std::size_t moves = 0;
  for (std::size_t worker = 0; worker < records.size(); ++worker) {
    run.records[worker] = records[worker].size();
    for (const Start& start : records[worker])
      if (std::visit([](const auto& record) { return record.tells_segments != 0; }, start))
        moves += link::SegmentLog::most_of_one_round(members_.node_of_rank.size());
  }
  run.owed = run.records;
  run.waits_us.assign(run.owed.size(), -kFreshUs);
  for (const Start& start : records.front())
    run.bytes += std::visit([](const auto& record) { return record.bytes; }, start);
  if (moves > 0) run.segments = std::make_shared<link::SegmentLog>(0, std::min(moves, link::SegmentLog::kMost));
  return run;
}

void InProcessDriver::start(const SubCommTask& launch) {
  if (!alive_) return;
  const Records records = make_records_(launch);
  Run run = prepare(launch, records);
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

Result<void> InProcessDriver::waits(std::size_t worker, std::uint64_t token) {
  const auto run = std::ranges::find(runs_, token, &Run::token);
  if (run == runs_.end() || run->owed[worker] == 0)
    return fail(ErrorKind::kViolation, "an in-process link waits in a launch that it was not given");
  run->waits_us[worker] = reactor_.now_us();
  return {};
}

// Each worker runs one launch at a time, in their order.
std::uint64_t InProcessDriver::under_way_below(std::uint64_t number) const {
  if (runs_.empty()) return number;
  const Run& oldest = runs_.front();
  const TimeUs since_us = reactor_.now_us() - kFreshUs;
  for (std::size_t worker = 0; worker < oldest.owed.size(); ++worker)
    if (oldest.owed[worker] > 0 && oldest.waits_us[worker] <= since_us) return oldest.token;
  return runs_.size() > 1 ? runs_[1].token : number;
}

// Data between ranks of one node is nothing that nodes send. Both sides make the same number of the two ranks, which stands for
// the round: a link that workers run has only one.
Result<void> InProcessDriver::moved(std::size_t worker, const shm::SegmentRecord& segment) {
  const auto run = std::ranges::find(runs_, segment.launch, &Run::token);
  if (run == runs_.end() || run->owed[worker] == 0 || !run->segments)
    return fail(ErrorKind::kViolation, "an in-process link told of data that nobody asked for");
  const std::uint32_t own = members_.ranks[worker], peer = segment.peer_rank;
  const bool is_possible = peer < members_.node_of_rank.size() && segment.part >= 1 &&
                           segment.part <= static_cast<std::uint32_t>(model::kLastSegmentPart) &&
                           segment.began_us <= segment.ended_us &&
                           segment.ended_us <= static_cast<std::uint64_t>(MonotonicClock::now());
  if (!is_possible) return fail(ErrorKind::kViolation, "an in-process link told of data that cannot have moved");
  const std::uint32_t peer_node = members_.node_of_rank[peer];
  if (peer_node == members_.node) return {};
  const bool is_sent = segment.is_sent == 1;
  const auto world = static_cast<std::uint32_t>(members_.node_of_rank.size());
  run->segments->moved({.request = run->records[worker] - run->owed[worker],
                        .peer = peer_node,
                        .round = is_sent ? own * world + peer : peer * world + own,
                        .bytes = segment.bytes,
                        .began_us = static_cast<TimeUs>(segment.began_us),
                        .ended_us = static_cast<TimeUs>(segment.ended_us),
                        .part = static_cast<model::SegmentPart>(segment.part),
                        .is_sent = is_sent});
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
  done.segments = run->segments;
  done.spans.push_back({trace::TransferStage::kLink, began_us, last_done_us_});
  runs_.erase(run);
  on_done_(std::move(done));
}

}  // namespace deft::daemon
