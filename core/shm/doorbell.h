// A doorbell is an eventfd that one side rings and the other side polls.
//
//   auto bell = Doorbell::create();            // then pass bell->descriptor() to the other side
//   auto bell = Doorbell::adopt(descriptor);   // a doorbell that was received
//   bell->ring();
//   poll(bell->descriptor()); bell->drain();   // wait() does both
//
// Both sides have the same open file. So the other side can make it block at any time (O_NONBLOCK), and can fill or empty its counter
// between a poll and a read. Who does not trust the other side only polls: with EPOLLET each ring is an event, and nothing is read.
#pragma once

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::shm {

class Doorbell {
 public:
  Doorbell() = default;
  static Result<Doorbell> create();  // kExhausted if there are no descriptors

  // Takes a received descriptor and makes it non-blocking; kViolation if it is no eventfd.
  static Result<Doorbell> adopt(Descriptor descriptor);

  // Any thread. Never fails: a peer whose counter is full is awake. Waits only if the peer has made it wait.
  void ring() const;

  // Forgets all rings so far.
  void drain() const;

  // Waits until it rings, and drains it. False if `deadline_us` (MonotonicClock) has passed.
  [[nodiscard]] bool wait(TimeUs deadline_us) const;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  explicit Doorbell(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Descriptor descriptor_;
};

}  // namespace deft::shm
