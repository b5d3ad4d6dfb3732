// Hears of all that a request sends and receives, for traces.
//
//   request.observer = std::make_shared<Log>();      // Log is a SegmentObserver; nccl links tell nothing
//   link->submit(request);                           // the link's threads call moved() until the request has completed
//
// A backend measures each move by a MoveTimer. Without an observer that reads no clock.
//
// What the times of a send mean depends on what the backend tells. gloo: the call that gives it the data. The kernel takes what it has
// room for meanwhile, and gloo's loop sends the rest, whose end gloo tells only of all together. A block of gloo's: until gloo has given
// all of it to the kernel, or later, if this node still waited for the peers' blocks. mpi: the wait for a free slot, and the copy
// into it. ps: the call that gives it to ZeroMQ. tcp: until the kernel has taken all of it.
// A receive begins when this node began to wait for it, and its data may have come before that; of a ps link, when this node had
// pushed the segment; of a tcp link, when it began to send. It ends when the link's thread has noticed that all of it is here. So a receive never ends before its send began.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/model/segment_part.h"

namespace deft::link {

struct SegmentMove {
  std::uint64_t request = 0;  // its id
  std::uint32_t peer = 0;     // node or, of a link that workers run, rank; or a server's place in the link's list
  std::uint32_t round = 0;    // of the request, the same on both sides; a segment's number if it goes over a server
  std::uint64_t bytes = 0;
  TimeUs began_us = 0, ended_us = 0;  // MonotonicClock
  model::SegmentPart part{};
  bool is_sent = false;  // else received
  bool is_server = false;
};

class SegmentObserver {
 public:
  virtual ~SegmentObserver() = default;
  // Any thread of the link, several at once. It must not wait, because the link's data waits meanwhile.
  virtual void moved(const SegmentMove& move) noexcept = 0;

 protected:
  SegmentObserver() = default;
  SegmentObserver(const SegmentObserver&) = default;
  SegmentObserver& operator=(const SegmentObserver&) = default;
};

// A move begins when this is made, or at a moment that is given, and ends when it is told.
class MoveTimer {
 public:
  explicit MoveTimer(SegmentObserver* observer)
      : observer_(observer), began_us_(observer == nullptr ? 0 : MonotonicClock::now()) {}

  MoveTimer(SegmentObserver* observer, TimeUs began_us) : observer_(observer), began_us_(began_us) {}

  // `move`: without its times.
  void tell(SegmentMove move) const {
    if (observer_ == nullptr) return;
    move.began_us = began_us_;
    move.ended_us = MonotonicClock::now();
    observer_->moved(move);
  }

 private:
  SegmentObserver* observer_;
  TimeUs began_us_;
};

}  // namespace deft::link
