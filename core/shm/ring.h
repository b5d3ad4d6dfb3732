// The two ends of a ring in a control segment (layout.h documents the memory and the protocol).
//
//   Producer out(control, records);            Consumer in(control, records);
//   if (out.push(record)) wake(doorbell);      while (in.pop(record) == Pop::kRecord) handle(record);
//                                              if (in.prepare_to_sleep()) poll(doorbell);
//
// The number of records is a power of two. An end belongs to one thread at a time. It keeps its own position, and loads
// each shared word once and never trusts it.
#pragma once

#include <cstdint>
#include <span>

#include "core/shm/layout.h"

namespace deft::shm {

// The result of Producer::push.
enum class Push : std::uint8_t {
  kDone,     // published; the consumer is awake
  kWake,     // published; the caller must ring the consumer's doorbell
  kFull,     // nothing was written
  kCorrupt,  // the consumer's position makes no sense
};

// The result of Consumer::pop. kCorrupt: the producer's position makes no sense.
enum class Pop : std::uint8_t { kRecord, kEmpty, kCorrupt };

// The end that writes records.
class Producer {
 public:
  Producer(RingControl& control, std::span<Record> records) : control_(control), records_(records) {}
  Push push(const Record& record);

 private:
  RingControl& control_;
  std::span<Record> records_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // the consumer's position when it was last read
};

// The end that reads records.
class Consumer {
 public:
  Consumer(RingControl& control, std::span<const Record> records) : control_(control), records_(records) {}

  // Copies the next record into `record`.
  Pop pop(Record& record);

  // Announces that this end is about to wait for its doorbell. False if a record has come meanwhile: then do not wait.
  bool prepare_to_sleep();
  void woke();  // takes the announcement back

 private:
  RingControl& control_;
  std::span<const Record> records_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // the producer's position when it was last read
};

}  // namespace deft::shm
