// The layout of a worker's control segment: the contract between libdeft and deftd.
//
// The daemon creates one sealed memfd a worker and passes its descriptor over the unix socket:
//
//   offset 0                 SegmentHeader        written by the daemon before the descriptor is passed, then read only
//   header.submission_offset RingControl + records   worker -> daemon: READY, STAGE, FLUSH, and RAN of worker-run links
//   header.completion_offset RingControl + records   daemon -> worker: START, START_HEAP, FINISH, PLAN, OP_DONE, FAILED
//
// Each ring has one producer and one consumer and a capacity that is a power of two. Positions count records from 0 and
// never wrap; record i lies at index i % capacity.
//   producer: wait until tail - head < capacity; write the record; publish tail + 1 (release).
//   consumer: while head < tail (acquire): copy the record out; publish head + 1 (release).
// Sleeping: the consumer sets `sleeping` to 1, re-checks tail (both sequentially consistent), and only then waits for its
// eventfd; a producer that publishes and then finds `sleeping` set exchanges it to 0 and writes the eventfd. So an awake
// consumer costs no system call, and no wake-up is lost.
//
// The two sides do not trust each other alike. The daemon treats every word of the segment as hostile: it keeps its own
// positions privately (the shared copies are published, never read back), copies a record before it checks it, loads
// each shared word once, and drops the client when tail - head > capacity or a record makes no sense.
// All-zero memory is a valid empty ring. The arenas are segments of their own, without any header.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace deft::shm {

inline constexpr std::uint64_t kSegmentMagic = 0x3147455354464544;  // "DEFTSEG1"
inline constexpr std::uint32_t kLayoutVersion = 4;
inline constexpr std::uint32_t kRingCapacity = 4096;  // records
inline constexpr std::size_t kCacheLineBytes = 64;

enum class RecordKind : std::uint16_t {
  kNone = 0,
  // worker -> daemon
  kReady =
      1,  // tensors [tensor, tensor + count) of `group` hold the gradients of `generation` in `slot`, the newest of
          // them those of step `offset`; the newest flush or plan before them began with step `operation`
  kStage =
      2,  // `stage` (1 forward, 2 backward) of step `generation` began at time_us; since the stage before, the worker
          // has waited for `offset` us
  kRan = 3,  // worker-run link `code` has run one START of launch `operation`; a failure comes over the socket instead
  kFlush = 4,  // the generation of `group` under way ends before step `generation`
  // daemon -> worker
  kFinish = 16,  // tensors [tensor, tensor + count) of `generation` are reduced in the arena
  kOpDone = 17,  // the collective `operation` is done, with `code` (0 = ok)
  kStart = 18,  // run launch `operation` on worker-run link `code`: all-reduce `bytes` at `offset` of `slot` of `group`
  kFailed = 19,  // the job failed; the text comes over the socket
  kPlan = 20,    // plan `operation` of `group` begins with step `generation`; its cycle has `bytes` steps, and for the
                 // tensors [tensor, tensor + count) `code` generations, which follow
  kPlanGeneration = 21,  // merges the steps `generation` to `operation` of the cycle, is applied before step `offset`
  kStartHeap = 22,  // the same for `stage` (ipc::Collective: all-reduce or broadcast) of `bytes` at `offset` of heap
                    // `group`, elements of dtype `tensor`, reduced by `count` or from rank `generation`
};

// One record. Fields that a kind does not name are zero.
struct Record {
  RecordKind kind = RecordKind::kNone;
  std::uint16_t slot = 0;
  std::uint32_t group = 0;
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;
  std::uint64_t generation = 0;
  std::uint64_t operation = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::int64_t time_us = 0;  // MonotonicClock, when the record was made
  std::int32_t code = 0;
  std::uint32_t stage = 0;
};

struct RingControl {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> tail{0};      // published by the producer
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> head{0};      // published by the consumer
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> sleeping{0};  // 1: the consumer waits for its eventfd
};

struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t ring_capacity = 0;
  std::uint64_t daemon_epoch = 0;  // differs for each start of the daemon
  std::uint64_t submission_offset = 0;
  std::uint64_t completion_offset = 0;
  std::uint64_t segment_bytes = 0;
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> heartbeat{
      0};  // counted up by the worker's calls; stuck, not dead
};

static_assert(sizeof(Record) == 64, "one record is one cache line");
static_assert(std::is_trivially_copyable_v<Record> && std::is_standard_layout_v<Record>);
static_assert(sizeof(RingControl) == 3 * kCacheLineBytes && std::is_standard_layout_v<RingControl>);
static_assert(sizeof(SegmentHeader) == 2 * kCacheLineBytes && std::is_standard_layout_v<SegmentHeader>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "a lock inside shared memory would hang the other side when its owner dies");
static_assert((kRingCapacity & (kRingCapacity - 1)) == 0);

inline constexpr std::uint64_t kSubmissionOffset = sizeof(SegmentHeader);
inline constexpr std::uint64_t kRingBytes = sizeof(RingControl) + std::uint64_t{kRingCapacity} * sizeof(Record);
inline constexpr std::uint64_t kCompletionOffset = kSubmissionOffset + kRingBytes;
inline constexpr std::uint64_t kControlSegmentBytes = kCompletionOffset + kRingBytes;

}  // namespace deft::shm
