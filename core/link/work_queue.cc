#include "core/link/work_queue.h"

#include <algorithm>
#include <utility>

namespace deft::link {

bool WorkQueue::can_start() const {
  if (waiting_.empty()) return false;
  return in_flight_.empty() || (shares_ && waiting_.front().reduces() && in_flight_.size() < depth_);
}

WorkRequest WorkQueue::start(const WorkQueue* beside) {
  WorkRequest request = std::move(waiting_.front());
  waiting_.pop_front();
  in_flight_.push_back({request.id, MonotonicClock::now(), beside == nullptr ? 0 : beside->ended_});
  shares_ = request.reduces();
  ++started_;
  return request;
}

bool WorkQueue::has(std::uint64_t id) const {
  return std::ranges::find(in_flight_, id, &Entry::id) != in_flight_.end();
}

// The times of requests add up: each counts from the end of the previous one, or from the start of the oldest in flight.
Completion WorkQueue::end(std::uint64_t id, const WorkQueue* beside) {
  const auto entry = std::ranges::find(in_flight_, id, &Entry::id);
  const TimeUs now_us = MonotonicClock::now();
  Completion done{.id = id};
  done.overlapped = entry != in_flight_.begin() || entry->began_us < free_us_;
  done.link_us = now_us - std::max(in_flight_.front().began_us, free_us_);
  // If everything that ever started there had ended before, nothing shared the wire.
  if (beside != nullptr && beside->started_ != entry->beside_ended) done.link_us.reset();
  free_us_ = now_us;
  ++ended_;
  in_flight_.erase(entry);
  return done;
}

void WorkQueue::clear() {
  waiting_.clear();
  in_flight_.clear();
}

}  // namespace deft::link
