#include "daemon/server/ring_pump.h"

#include <sys/epoll.h>

#include <atomic>
#include <utility>

namespace deft::daemon {
namespace {

constexpr int kRecordsARound = 512;            // so that one busy worker does not keep the others waiting
constexpr std::size_t kMaxOverflow = 1 << 16;  // completions that a worker may leave unread beyond its ring
constexpr TimeUs kOverflowRetryUs = 1000;

struct Counters {
  std::atomic<std::uint64_t> overflows{0}, unread{0}, corrupt{0};
};
Counters counters;

}  // namespace

RingCounts ring_counts() { return {counters.overflows, counters.unread, counters.corrupt}; }

Result<std::unique_ptr<RingPump>> RingPump::open(Reactor& reactor, std::shared_ptr<shm::Segment> segment,
                                                 const Life& life, Events events) {
  auto bell = shm::Doorbell::create();
  if (!bell) return tl::unexpected(bell.error());
  std::unique_ptr<RingPump> pump(
      new RingPump(reactor, std::move(segment), life.daemon_epoch, std::move(*bell), std::move(events)));
  RingPump* const raw = pump.get();
  const auto rung = [](std::uint32_t) {};  // the poller looks at the ring
  if (auto ok = reactor.watch(raw->bell_.descriptor(), EPOLLIN | EPOLLET, rung); !ok) return tl::unexpected(ok.error());
  raw->poller_ = reactor.add_poller([raw](bool about_to_sleep) { return raw->drain(about_to_sleep); });
  raw->beat(life.heartbeat_us);
  return pump;
}

RingPump::RingPump(Reactor& reactor, std::shared_ptr<shm::Segment> segment, std::uint64_t daemon_epoch,
                   shm::Doorbell bell, Events events)
    : reactor_(reactor),
      segment_(std::move(segment)),
      rings_(shm::ControlSegment::format(*segment_, daemon_epoch)),
      submissions_(rings_.submission(), rings_.submission_records()),
      completions_(rings_.completion(), rings_.completion_records()),
      bell_(std::move(bell)),
      events_(std::move(events)) {}

RingPump::~RingPump() {
  if (poller_ != 0) reactor_.remove_poller(poller_);
  reactor_.cancel(beat_);
  reactor_.cancel(retry_);
  reactor_.unwatch(bell_.descriptor());
}

void RingPump::beat(TimeUs every_us) {
  rings_.beat();
  beat_ = reactor_.after(every_us, [this, every_us] { beat(every_us); });
}

std::array<int, 2> RingPump::descriptors() const { return {segment_->descriptor(), bell_.descriptor()}; }

void RingPump::stop() { stopped_ = true; }

void RingPump::fail(Fault fault) {
  if (std::exchange(stopped_, true)) return;
  ++(fault == Fault::kUnread ? counters.unread : counters.corrupt);
  const char* what = "it does not read its completions";
  if (fault == Fault::kSubmissions) what = "its submission ring is corrupt";
  if (fault == Fault::kCompletions) what = "its completion ring is corrupt";
  events_.on_broken({ErrorKind::kViolation, what, "", {}});
}

bool RingPump::drain(bool about_to_sleep) {
  if (stopped_) return false;
  const bool any = flush();
  if (!about_to_sleep) submissions_.woke();
  shm::Record record;
  for (int i = 0; i < kRecordsARound && !stopped_; ++i) {
    const shm::Pop popped = submissions_.pop(record);
    if (popped == shm::Pop::kCorrupt) fail(Fault::kSubmissions);
    if (popped == shm::Pop::kEmpty) return any || i > 0 || (about_to_sleep && !submissions_.prepare_to_sleep());
    if (popped == shm::Pop::kRecord) events_.on_record(record);
  }
  return true;
}

// Takes no more than the ring holds, so a worker that goes on writing is not waited for.
void RingPump::take_rest() {
  for (std::size_t taken = 0; taken < rings_.submission_records().size() && !stopped_; taken += kRecordsARound)
    if (!drain(false)) return;
}

void RingPump::complete(const shm::Record& record) {
  if (stopped_) return;
  overflow_.push_back(record);
  flush();
  if (!overflow_.empty()) ++counters.overflows;  // this one, being the last, is among them
  if (overflow_.size() > kMaxOverflow) fail(Fault::kUnread);
}

bool RingPump::flush() {
  bool any = false;
  while (!overflow_.empty()) {
    const shm::Push pushed = completions_.push(overflow_.front());
    if (pushed == shm::Push::kFull) {
      if (retry_ == 0) retry_ = reactor_.after(kOverflowRetryUs, [this] { retry_ = 0; });
      break;
    }
    if (pushed == shm::Push::kCorrupt) {
      overflow_.clear();
      fail(Fault::kCompletions);
      return true;
    }
    overflow_.pop_front();
    any = true;
    if (pushed == shm::Push::kWake) events_.wake();
  }
  return any;
}

}  // namespace deft::daemon
