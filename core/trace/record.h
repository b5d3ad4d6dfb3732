// The records of a trace: 64 bytes each, a time, a kind and the payload of that kind.
//
//   TraceRecord record(begin_us, end_us, PartTrace{.number = 7, .bytes = 4096, .link = 1});
//   if (record.kind() == TraceKind::kPart) show(record.as<PartTrace>());
//
// Times are microseconds of the node's monotonic clock (core/base/clock.h). Something that has no duration ends when it begins.
// A node writes what it sees itself, so records of different nodes have different clocks: core/replay aligns them.
//
// A file of them may come from anywhere: core/trace/trace_file.h checks the kind, the times and the enumerations when it reads them, and no
// other number. What workers told of memory, the daemon passes on unchecked.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/base/clock.h"

namespace deft::trace {

// The kinds, in the order in which a gradient meets them.
enum class TraceKind : std::uint16_t {
  kNone = 0,
  kStage = 1,
  kGradient = 2,
  kOrder = 3,
  kTransfer = 4,
  kClock = 5,
  kTraffic = 6,
  kLayer = 7,
  kMemory = 8,
  kMemoryStep = 9,
  kSettings = 10,
  kPolicy = 11,
  kCpu = 12,
  kSegment = 13,  // segment_trace.h
  kCores = 14,    // cores_trace.h
  kLinkCost = 15  // link_cost_trace.h
};
inline constexpr TraceKind kLastTraceKind = TraceKind::kLinkCost;
// Files have some records of such kinds from before their beginning, so that short ones tell of clocks and policies, too.
constexpr bool may_be_older(TraceKind kind) {
  return kind == TraceKind::kClock || kind == TraceKind::kPolicy || kind == TraceKind::kLinkCost;
}

// A worker began a stage of a step. `waited_us`: how long it has waited for updates since its last stage. `tells_waits`: 1 if this is all
// of its waiting; 0 if it has never waited through Deft, or if an older version wrote the record.
struct StageTrace {
  static constexpr TraceKind kKind = TraceKind::kStage;
  std::uint32_t worker = 0;  // its number on this node
  std::uint32_t stage = 0;   // model::Stage
  std::uint64_t step = 0;
  std::uint64_t waited_us = 0;
  std::uint32_t tells_waits = 0;
};

// A worker handed in the gradients of `tensors` tensors, whose generation ends with `last_step`.
struct GradientTrace {
  static constexpr TraceKind kKind = TraceKind::kGradient;
  std::uint32_t worker = 0;
  std::uint32_t group = 0;
  std::uint32_t first_tensor = 0, tensors = 0;
  std::uint64_t generation = 0;
  std::uint64_t last_step = 0;
};

// The leader ordered a part: bytes [offset, offset + bytes) of a bucket. They may go on over the buckets behind it.
struct OrderTrace {
  static constexpr TraceKind kKind = TraceKind::kOrder;
  std::uint64_t number = 0;  // of the launch; the same on all nodes
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint32_t bytes_low = 0;
  std::uint16_t bytes_high = 0;
  std::uint8_t codec = 0;  // of the job's list; 0: exact; model::kWithResiduals: exact, and residuals go along
  std::uint8_t half = 0;   // model::AllReduceHalf
  std::uint32_t bucket = 0;
  std::uint16_t group = 0, link = 0;

  [[nodiscard]] std::uint64_t bytes() const { return (std::uint64_t{bytes_high} << 32) | bytes_low; }
  void set_bytes(std::uint64_t bytes) {
    bytes_low = static_cast<std::uint32_t>(bytes);
    bytes_high = static_cast<std::uint16_t>(bytes >> 32);
  }
};

// What a node does for a launch, one after the other: on the link's thread, and at the end on the reactor's.
enum class TransferStage : std::uint16_t {
  kSum = 1,     // adds the local workers' gradients
  kEncode = 2,  // and makes codes of them
  kLink = 3,    // from the request to its completion; other transfers share the link meanwhile
  kDecode = 4,
  kCopy = 5,    // the result to the other local workers
  kReport = 6,  // until the workers are told
};
inline constexpr TransferStage kLastTransferStage = TransferStage::kReport;

struct TransferTrace {
  static constexpr TraceKind kKind = TraceKind::kTransfer;
  std::uint64_t number = 0;      // of the launch
  std::uint64_t bytes = 0;       // of the gradients
  std::uint64_t wire_bytes = 0;  // of what this node brings to the link
  std::uint16_t stage = 0;       // TransferStage
  std::uint16_t link = 0;
  std::uint32_t unused = 0;
};

// This node asked the leader's clock: the record begins with the question and ends with the answer. `leader_us` is the
// leader's clock in between.
struct ClockTrace {
  static constexpr TraceKind kKind = TraceKind::kClock;
  std::int64_t leader_us = 0;
};

// What this node has sent to a peer over a link between begin and end (core/link/traffic.h). The last two are 0 in older versions' records.
struct TrafficTrace {
  static constexpr TraceKind kKind = TraceKind::kTraffic;
  std::uint64_t sent_bytes = 0;
  std::uint64_t busy_us = 0;  // in which data was on its way
  std::uint32_t peer = 0;     // node, or a server's place in the link's list
  std::uint32_t resent = 0;   // packets
  std::uint32_t rtt_us = 0;   // the least round trip
  std::uint16_t link = 0;
  std::uint16_t is_server = 0;                  // not 0: the peer is a parameter server
  std::uint32_t pushed_kb = 0, pushing_us = 0;  // to a server, by the kernel: units of 1024 bytes, in so long
};

// A call of a module with parameters, in the order of forward. Records of a worker's layers and memory come together, and
// MemoryStepTrace ends them.
struct LayerTrace {
  static constexpr TraceKind kKind = TraceKind::kLayer;
  std::uint32_t worker = 0;
  std::uint32_t group = 0;
  std::uint32_t layer = 0;       // counts up from 0
  std::uint32_t tensor = 0;      // the first that backward produces of the layer's
  std::uint64_t forward_ns = 0;  // until the next layer began, waits left out; 0: not measured
};

enum class MemoryPart : std::uint16_t {
  kWeights = 1,      // and buffers
  kOptimizer = 2,    // its state
  kArena = 3,        // shared with the daemon
  kGradients = 4,    // outside the arena
  kInputs = 5,       // the batch
  kActivations = 6,  // and whatever else lives longer than a position
  kTemporary = 7,    // in a single position
};
inline constexpr MemoryPart kLastMemoryPart = MemoryPart::kTemporary;

// Bytes that a step of a worker held in memory. With n layers a step has the positions 0: before it; 1 to n: forward of each layer and
// what follows it; n + 1: the loss; n + 2 to 2n + 1: backward, of the last layer first; 2n + 2: the update; 2n + 3: after the step.
//
// Weights, optimizer state and arena are there all the time, from 0 to 2n + 3. A temporary has begin == end: it is the peak in that
// position, without the bytes that were there during the whole position. Bytes of other parts were allocated in position `begin` and
// freed in `end`. They count in the positions between. The temporaries of these two positions count them as long as they were there.
struct MemoryTrace {
  static constexpr TraceKind kKind = TraceKind::kMemory;
  static constexpr std::uint32_t kNoLayer = 0xffff'ffff;
  std::uint32_t worker = 0;
  std::uint16_t part = 0;  // MemoryPart
  std::uint16_t unused = 0;
  std::uint32_t begin = 0, end = 0;
  std::uint32_t input_of = kNoLayer;  // the last layer that took it as its input
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;
  std::uint64_t growing = 0;  // of these, in proportion to the batch
};

struct MemoryStepTrace {
  static constexpr TraceKind kKind = TraceKind::kMemoryStep;
  std::uint32_t worker = 0;
  std::uint32_t layers = 0;   // records of layers before this one
  std::uint32_t amounts = 0;  // records of memory before this one
  std::uint32_t samples = 0;  // of the batch; 0: not known
  std::uint64_t step = 0;
};

// The user has set other options (deft set, deft tune). The leader's node records it.
struct SettingsTrace {
  static constexpr TraceKind kKind = TraceKind::kSettings;
  std::uint32_t options = 0;  // how many
};

// The policy in force for a group of gradients, from the backward of `step` on. The leader's node records it when it changes, and again
// when a file begins. So the step may be older than the record.
struct PolicyTrace {
  static constexpr TraceKind kKind = TraceKind::kPolicy;
  std::uint64_t step = 0;
  std::uint64_t partition_bytes = 0;
  std::uint64_t credit_bytes = 0;
  std::uint32_t fused_bytes = 0;  // sched::PolicyChoice has it
  std::uint32_t before_us = 0;    // a step took so long before; 0: not measured
  std::uint32_t after_us = 0;     // and so long under the policy that was tried
  std::uint16_t group = 0;
  std::uint8_t policy = 0;  // PolicyId
  std::uint8_t reason = 0;  // model::PolicyReason
};

// The processor time that a thread of this node's daemon has used between begin and end.
struct CpuTrace {
  static constexpr TraceKind kKind = TraceKind::kCpu;
  std::uint64_t cpu_us = 0;
  std::uint16_t thread = 0;              // model::DaemonThread
  std::uint16_t link = 0;                // whose thread it is, if it is one of a link
  std::uint16_t number = 0, unused = 0;  // of the link's threads that do the same
};

class TraceRecord {
 public:
  TraceRecord() = default;
  template <typename Payload>
  TraceRecord(TimeUs begin_us, TimeUs end_us, const Payload& payload) : begin_us_(begin_us), end_us_(end_us) {
    static_assert(std::is_trivially_copyable_v<Payload> && sizeof(Payload) <= kPayloadBytes);
    kind_ = Payload::kKind;
    std::memcpy(payload_.data(), &payload, sizeof(Payload));
  }

  [[nodiscard]] TimeUs begin_us() const { return begin_us_; }
  [[nodiscard]] TimeUs end_us() const { return end_us_; }
  [[nodiscard]] TraceKind kind() const { return kind_; }
  // `kind()` must be Payload's: another one is a bug of the caller.
  template <typename Payload>
  [[nodiscard]] Payload as() const {
    if (kind() != Payload::kKind) std::abort();
    Payload payload;
    std::memcpy(&payload, payload_.data(), sizeof(Payload));
    return payload;
  }
  // The same record with other times.
  [[nodiscard]] TraceRecord at(TimeUs begin_us, TimeUs end_us) const {
    TraceRecord moved = *this;
    moved.begin_us_ = begin_us, moved.end_us_ = end_us;
    return moved;
  }

 private:
  static constexpr std::size_t kPayloadBytes = 40;
  TraceKind kind_ = TraceKind::kNone;
  std::array<std::uint16_t, 3> unused_{};
  TimeUs begin_us_ = 0;
  TimeUs end_us_ = 0;
  alignas(8) std::array<std::byte, kPayloadBytes> payload_{};
};
static_assert(sizeof(TraceRecord) == 64 && std::is_trivially_copyable_v<TraceRecord>);

}  // namespace deft::trace
