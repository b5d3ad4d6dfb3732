// The layout of a worker's control segment. It is the contract between libdeft and deftd.
//
// The daemon creates one sealed memfd for each worker and passes its descriptor over the unix socket:
//
//   offset     bytes       content                    written by
//   0          64          SegmentHeader              the daemon, before it passes the descriptor; then only `heartbeats`
//   64         192         RingControl of submission  tail: worker; head and sleeping: daemon
//   256        4096 x 64   records of submission      worker: READY, STAGE, RAN, FLUSH, SEND_RESIDUALS, LAYER, MEMORY,
//                                                     MEMORY_STEP, RELEASE, SEGMENT
//   262,400    192         RingControl of completion  tail: daemon; head and sleeping: worker
//   262,592    4096 x 64   records of completion      daemon: FINISH, OP_DONE, START, START_COLLECTIVE, PLAN,
//                                                     PLAN_GENERATION, FAILED, TRACE_BEGAN, RELEASED
//
// record.h documents the records. The arenas and the staging buffers are segments of their own, without any header.
//
// A ring has one producer and one consumer, and a capacity that is a power of two. Positions count records from 0 and
// never wrap; record i lies at index i % capacity. All-zero memory is an empty ring. A record has two states:
//   free       i < head or i >= tail: the producer may write it once tail - head < capacity
//   published  head <= i < tail: the consumer may copy it; nobody writes it
// The producer writes the record and then publishes tail + 1 (release). The consumer sees tail (acquire), copies the
// record, and then publishes head + 1 (release). A side that dies in between leaves the ring as it was before: no half
// record is ever published.
//
// `sleeping` has two states. 0: the consumer looks at the ring by itself. 1: it waits to be woken, or is about to.
// The consumer sets 1, looks at tail once more (both sequentially consistent), and only then waits. A producer that has
// published and finds 1 exchanges it for 0 and wakes the consumer. So an awake consumer costs no system call, and no
// wake-up is lost. A worker wakes the daemon by an eventfd (doorbell.h), and the daemon wakes a worker by a message WAKE of the
// unix socket.
//
// The worker trusts the daemon, but the daemon does not trust the worker. It treats every word of the segment as hostile: it keeps
// its own positions privately (it publishes them and never reads them back), loads each shared word once, copies a record
// before it checks it, and drops the client if tail - head > capacity or if a record makes no sense.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/shm/record.h"

namespace deft::shm {

inline constexpr std::uint64_t kSegmentMagic = 0x3147455354464544;  // "DEFTSEG1"
inline constexpr std::uint32_t kLayoutVersion = 8;
inline constexpr std::uint32_t kRingCapacity = 4096;  // records
inline constexpr std::size_t kCacheLineBytes = 64;

// Each word has a cache line of its own: the two sides write different ones.
struct RingControl {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> tail{0};      // published by the producer
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> head{0};      // published by the consumer
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> sleeping{0};  // 1: the consumer waits to be woken
};

struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t ring_capacity = 0;
  std::uint64_t daemon_epoch = 0;  // differs for each start of the daemon
  std::uint64_t submission_offset = 0;
  std::uint64_t completion_offset = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t heartbeats = 0;  // the daemon counts it up while it lives; 0: it counts none
  std::uint64_t unused = 0;
};

static_assert(sizeof(RingControl) == 3 * kCacheLineBytes && std::is_standard_layout_v<RingControl>);
static_assert(offsetof(RingControl, tail) == 0 && offsetof(RingControl, head) == kCacheLineBytes &&
              offsetof(RingControl, sleeping) == 2 * kCacheLineBytes);
static_assert(sizeof(SegmentHeader) == kCacheLineBytes && std::is_standard_layout_v<SegmentHeader>);
static_assert(std::is_trivially_copyable_v<SegmentHeader>);
static_assert(sizeof(Record) == kCacheLineBytes, "a record is copied without touching its neighbours");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "a lock inside shared memory would hang the other side when its owner dies");
static_assert((kRingCapacity & (kRingCapacity - 1)) == 0);

inline constexpr std::uint64_t kSubmissionOffset = sizeof(SegmentHeader);
inline constexpr std::uint64_t kRingBytes = sizeof(RingControl) + std::uint64_t{kRingCapacity} * sizeof(Record);
inline constexpr std::uint64_t kCompletionOffset = kSubmissionOffset + kRingBytes;
inline constexpr std::uint64_t kControlSegmentBytes = kCompletionOffset + kRingBytes;
static_assert(kSubmissionOffset == 64 && kCompletionOffset == 262'400, "the table above says so");
static_assert(kSubmissionOffset % kCacheLineBytes == 0 && kCompletionOffset % kCacheLineBytes == 0);

}  // namespace deft::shm
