// The newest records of a job on this node, in a ring of fixed size. Always on: adding a record takes no lock and no memory.
//
//   Recorder recorder;                                           // 4 MB
//   recorder.add({begin_us, end_us, TransferTrace{...}});        // one thread: the reactor
//
//   Recorder::Cursor cursor;                                     // any number of readers, on any thread
//   recorder.read(cursor, records);                              // appends what was added since the last call
//   cursor.lost                                                  // records that were overwritten before they were read
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/trace/record.h"

namespace deft::trace {

class Recorder {
 public:
  static constexpr std::size_t kRecords = std::size_t{1} << 16;

  struct Cursor {
    std::uint64_t next = 0;
    std::uint64_t lost = 0;
  };

  // `records`: a power of two. Memory is taken as it is used.
  explicit Recorder(std::size_t records = kRecords);

  void add(const TraceRecord& record);
  // Up to `until`, which is a cursor's `next`.
  void read(Cursor& cursor, std::vector<TraceRecord>& out, std::uint64_t until = ~std::uint64_t{0}) const;
  // A cursor at the oldest record that the ring holds now. Its `lost` counts records that are overwritten from now on.
  [[nodiscard]] Cursor held() const {
    const std::uint64_t end = next_.load(std::memory_order_acquire);
    return {end < size() ? 0 : end - size() + 1, 0};
  }
  // A cursor that sees only what is added from now on.
  [[nodiscard]] Cursor now() const { return {next_.load(std::memory_order_acquire), 0}; }
  // The newest answers of the leader's clock, the oldest first, also if the ring has lost them: a busy job fills the ring between two
  // answers, and without one a trace cannot be aligned. The thread that adds records.
  [[nodiscard]] std::vector<TraceRecord> clocks() const;

 private:
  // Words are atomic, so that a reader may copy a record while it is overwritten. It notices that afterwards.
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t kWords = sizeof(TraceRecord) / sizeof(Word);
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint64_t));
  struct Freed {
    void operator()(Word* memory) const { std::free(memory); }
  };

  [[nodiscard]] std::uint64_t size() const { return mask_ + 1; }
  [[nodiscard]] Word* place(std::uint64_t index) const { return words_.get() + (index & mask_) * kWords; }

  const std::uint64_t mask_;
  const std::unique_ptr<Word[], Freed> words_;
  std::atomic<std::uint64_t> next_{0};  // all records before it are written
  struct Clocks {
    std::array<TraceRecord, 64> newest = {};  // the next one's place is the oldest one's
    std::size_t count = 0;                    // of all times
  };
  Clocks clocks_;
};

}  // namespace deft::trace
