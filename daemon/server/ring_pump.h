// A worker's control segment as the daemon uses it: records come out of the submission ring, completions go in the
// other.
//
//   auto pump = RingPump::open(reactor, segment, {daemon_epoch, heartbeat_us}, {on_record, on_broken, wake});
//   send WELCOME with (*pump)->descriptors();
//   (*pump)->complete(shm::FinishRecord{...});
//
// While the pump lives it shows the worker by heartbeats in the segment that the daemon's loop runs. A worker that does not read its
// completions makes the daemon keep them, up to a limit; then it is dropped. Reactor thread only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"
#include "daemon/base/reactor.h"

namespace deft::daemon {

// Counts of all rings since the process began. Any thread.
struct RingCounts {
  std::uint64_t overflows = 0;  // completions that found their ring full
  std::uint64_t unread = 0;     // workers that were dropped because they read no completions
  std::uint64_t corrupt = 0;    // workers that were dropped because a ring was corrupt
};
RingCounts ring_counts();

class RingPump {
 public:
  struct Events {
    std::function<void(const shm::Record&)> on_record;  // a copy, unchecked
    std::function<void(const Error&)> on_broken;        // the worker broke the protocol; told once
    std::function<void()> wake;                         // the worker, which sleeps until it is woken
  };

  struct Life {
    std::uint64_t daemon_epoch = 0;
    TimeUs heartbeat_us = 0;  // between heartbeats
  };

  // `segment`: kControlSegmentBytes that nobody has written to. `reactor` outlives the pump.
  static Result<std::unique_ptr<RingPump>> open(Reactor& reactor, std::shared_ptr<shm::Segment> segment,
                                                const Life& life, Events events);
  ~RingPump();
  RingPump(const RingPump&) = delete;
  RingPump& operator=(const RingPump&) = delete;

  // The control segment and the daemon's doorbell: what WELCOME passes.
  [[nodiscard]] std::array<int, 2> descriptors() const;

  void complete(const shm::Record& record);  // wakes the worker if it sleeps
  void take_rest();                          // takes what the worker has written so far, because it leaves
  void stop();                               // no event comes any more

 private:
  RingPump(Reactor& reactor, std::shared_ptr<shm::Segment> segment, std::uint64_t daemon_epoch, shm::Doorbell bell,
           Events events);
  void beat(TimeUs every_us);
  bool drain(bool about_to_sleep);
  bool flush();
  enum class Fault : std::uint8_t { kUnread, kSubmissions, kCompletions };
  void fail(Fault fault);

  Reactor& reactor_;
  const std::shared_ptr<shm::Segment> segment_;
  const shm::ControlSegment rings_;
  shm::Consumer submissions_;
  shm::Producer completions_;
  const shm::Doorbell bell_;  // the worker has it, too: it is polled, and never read
  Events events_;
  std::deque<shm::Record> overflow_;  // completions that await room in the ring, oldest first
  Reactor::PollerId poller_ = 0;
  Reactor::TimerId beat_ = 0;
  Reactor::TimerId retry_ = 0;  // while completions overflow: the worker rings no bell when it has read some
  bool stopped_ = false;
};

}  // namespace deft::daemon
