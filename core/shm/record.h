// The records of the rings: 64 bytes each, a kind and the payload of that kind.
//
//   producer.push(ReadyRecord{.group = 1, .slot = 0, .first_tensor = 3, .tensors = 2, .generation = 7});
//   switch (record.kind()) { case RecordKind::kReady: return on_ready(record.as<ReadyRecord>()); ... }
//
// Each kind has a struct of its own, and no field means something else in another kind. A record of zeros is of kind
// kNone: a free place in a ring. Numbers are in the machine's order, because both sides run on one machine.
//
// The fields of the payloads: groups, tensors and slots are numbered from 0 in the order of the worker's declaration. A payload
// means the tensors [first_tensor, first_tensor + tensors). Generations and steps count from 0. A launch is the leader's number
// of a part or collective. A link has the number that the message LINK gave it. The daemon copies a record before it checks it,
// and believes no number of the worker.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace deft::shm {

enum class RecordKind : std::uint32_t {
  kNone = 0,
  // worker -> daemon
  kReady = 1,
  kStage = 2,
  kRan = 3,
  kFlush = 4,
  kSendResiduals = 5,
  kLayer = 6,
  kMemory = 7,
  kMemoryStep = 8,
  kRelease = 9,
  // daemon -> worker
  kFinish = 16,
  kOperationDone = 17,
  kStart = 18,
  kFailed = 19,
  kPlan = 20,
  kPlanGeneration = 21,
  kStartCollective = 22,
  kTraceBegan = 23,
  kReleased = 24,
};

// READY: the gradients of `tensors` for one generation lie in `slot` of the arena. All nodes compare the steps, so that
// workers that merge different steps are noticed.
struct ReadyRecord {
  static constexpr RecordKind kKind = RecordKind::kReady;
  std::uint32_t group = 0;
  std::uint32_t slot = 0;
  std::uint32_t first_tensor = 0;
  std::uint32_t tensors = 0;
  std::uint64_t generation = 0;
  std::uint64_t last_step = 0;   // the newest step whose gradients the generation merges
  std::uint64_t cycle_step = 0;  // the step with which the newest plan or flush before this generation began
};

// STAGE: the worker began a stage of a step.
struct StageRecord {
  static constexpr RecordKind kKind = RecordKind::kStage;
  std::uint32_t stage = 0;        // 1: forward, 2: backward
  std::uint32_t tells_waits = 0;  // 1: the worker has waited by deft_wait, so it waits nowhere else
  std::uint64_t step = 0;
  std::uint64_t waited_us = 0;  // how long the worker has waited for updates since its last stage
};

// RAN: an in-process link has run one START or START_COLLECTIVE. A failure comes over the socket instead.
struct RanRecord {
  static constexpr RecordKind kKind = RecordKind::kRan;
  std::uint32_t link = 0;
  std::uint32_t unused = 0;
  std::uint64_t launch = 0;
};

// FLUSH: the generation of `group` that is under way ends before `step`, and the plan's cycle begins anew there.
struct FlushRecord {
  static constexpr RecordKind kKind = RecordKind::kFlush;
  std::uint32_t group = 0;
  std::uint32_t unused = 0;
  std::uint64_t step = 0;
};

// SEND_RESIDUALS: the gradients of `step` travel as they are, and take along what encodings have left out so far.
struct SendResidualsRecord {
  static constexpr RecordKind kKind = RecordKind::kSendResiduals;
  std::uint32_t group = 0;
  std::uint32_t unused = 0;
  std::uint64_t step = 0;
};

// RELEASE: the worker uses `group` no more. What it has handed over before still counts for the others.
struct ReleaseRecord {
  static constexpr RecordKind kKind = RecordKind::kRelease;
  std::uint32_t group = 0;
  std::uint32_t unused = 0;
};

// FINISH: the tensors of `generation` are reduced, and the result lies in the arena.
struct FinishRecord {
  static constexpr RecordKind kKind = RecordKind::kFinish;
  std::uint32_t group = 0;
  std::uint32_t first_tensor = 0;
  std::uint32_t tensors = 0;
  std::uint32_t unused = 0;
  std::uint64_t generation = 0;
};

// OP_DONE: the collective that the worker called `operation` has ended.
struct OperationDoneRecord {
  static constexpr RecordKind kKind = RecordKind::kOperationDone;
  std::uint64_t operation = 0;
  std::uint32_t error_kind = 0;  // deft::ErrorKind, or 0 for success; the text of an error comes over the socket
  std::uint32_t unused = 0;
};

// START: run `launch` on an in-process link: all-reduce bytes [offset_bytes, offset_bytes + bytes) of a slot of the
// group's arena.
struct StartRecord {
  static constexpr RecordKind kKind = RecordKind::kStart;
  std::uint32_t link = 0;
  std::uint32_t group = 0;
  std::uint32_t slot = 0;
  std::uint32_t unused = 0;
  std::uint64_t launch = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
};

// START_COLLECTIVE: run `launch` on an in-process link: a collective on bytes [offset_bytes, offset_bytes + bytes) of a
// staging buffer.
struct StartCollectiveRecord {
  static constexpr RecordKind kKind = RecordKind::kStartCollective;
  std::uint32_t link = 0;
  std::uint32_t staging_buffer = 0;
  std::uint64_t launch = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint32_t collective = 0;  // ipc::Collective: all-reduce or broadcast
  std::uint32_t dtype = 0;       // model::DType
  std::uint32_t reduce_op = 0;   // model::ReduceOp; all-reduce only
  std::uint32_t root = 0;        // rank; broadcast only
};

// FAILED: the job has failed. The text comes over the socket.
struct FailedRecord {
  static constexpr RecordKind kKind = RecordKind::kFailed;
  std::uint32_t error_kind = 0;  // deft::ErrorKind
  std::uint32_t unused = 0;
};

// TRACE_BEGAN: a trace of the job is being written. The worker may tell of the memory of its steps.
struct TraceBeganRecord {
  static constexpr RecordKind kKind = RecordKind::kTraceBegan;
  std::uint64_t unused = 0;
};

// RELEASED: all ranks have released `group`, and nothing of it is under way. No record names it any more.
struct ReleasedRecord {
  static constexpr RecordKind kKind = RecordKind::kReleased;
  std::uint32_t group = 0;
  std::uint32_t unused = 0;
};

// PLAN: from `activation_step` on, the tensors follow a cycle of `cycle_steps` steps and `generations` generations. So many
// PLAN_GENERATION records follow this one. If the tensors of a plan have different dates, the plan comes as several PLAN
// records with the same epoch.
struct PlanRecord {
  static constexpr RecordKind kKind = RecordKind::kPlan;
  std::uint32_t group = 0;
  std::uint32_t first_tensor = 0;
  std::uint32_t tensors = 0;
  std::uint32_t generations = 0;
  std::uint64_t epoch = 0;
  std::uint64_t activation_step = 0;
  std::uint32_t cycle_steps = 0;
  std::uint32_t unused = 0;
};

// PLAN_GENERATION: one generation of the cycle that the PLAN before it began. Steps count from the cycle's begin.
struct PlanGenerationRecord {
  static constexpr RecordKind kKind = RecordKind::kPlanGeneration;
  std::uint32_t group = 0;
  std::uint32_t first_step = 0;
  std::uint32_t last_step = 0;   // the generation merges the steps [first_step, last_step]
  std::uint32_t apply_step = 0;  // the update is applied before this step
};

inline constexpr std::size_t kRecordBytes = 64;
inline constexpr std::size_t kPayloadOffset = 8;
inline constexpr std::size_t kPayloadBytes = kRecordBytes - kPayloadOffset;

template <typename T>
concept RecordPayload = std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> && sizeof(T) <= kPayloadBytes &&
                        alignof(T) <= kPayloadOffset&& std::same_as<decltype(T::kKind), const RecordKind>;

// A tagged union of a kind and the payload of that kind. It is copied as a whole.
class Record {
 public:
  Record() = default;  // kNone, all zero

  template <RecordPayload Payload>
  Record(const Payload& payload)
      : kind_(Payload::kKind) {  // NOLINT(google-explicit-constructor): a payload is a record
    std::memcpy(payload_, &payload, sizeof payload);
  }

  // The kind that the other side wrote. It may be a value that the enumeration does not name.
  [[nodiscard]] RecordKind kind() const { return kind_; }

  // The payload. The caller has found that kind() is Payload::kKind. Another kind is a bug of Deft, and ends the process.
  template <RecordPayload Payload>
  [[nodiscard]] Payload as() const {
    if (kind_ != Payload::kKind) std::abort();
    Payload payload;
    std::memcpy(&payload, payload_, sizeof payload);
    return payload;
  }

 private:
  RecordKind kind_ = RecordKind::kNone;
  std::uint32_t unused_ = 0;
  alignas(8) std::byte payload_[kPayloadBytes] = {};
};

static_assert(sizeof(Record) == kRecordBytes && alignof(Record) == 8, "one record is one cache line");
static_assert(std::is_trivially_copyable_v<Record> && std::is_standard_layout_v<Record>,
              "a record is copied by value between two processes");
static_assert(sizeof(ReadyRecord) == 40 && offsetof(ReadyRecord, generation) == 16);
static_assert(sizeof(StageRecord) == 24 && offsetof(StageRecord, step) == 8);
static_assert(sizeof(RanRecord) == 16 && offsetof(RanRecord, launch) == 8);
static_assert(sizeof(FlushRecord) == 16 && offsetof(FlushRecord, step) == 8);
static_assert(sizeof(SendResidualsRecord) == 16 && offsetof(SendResidualsRecord, step) == 8);
static_assert(sizeof(FinishRecord) == 24 && offsetof(FinishRecord, generation) == 16);
static_assert(sizeof(OperationDoneRecord) == 16 && offsetof(OperationDoneRecord, error_kind) == 8);
static_assert(sizeof(StartRecord) == 40 && offsetof(StartRecord, launch) == 16);
static_assert(sizeof(StartCollectiveRecord) == 48 && offsetof(StartCollectiveRecord, launch) == 8);
static_assert(sizeof(FailedRecord) == 8);
static_assert(sizeof(TraceBeganRecord) == 8 && sizeof(ReleaseRecord) == 8 && sizeof(ReleasedRecord) == 8);
static_assert(sizeof(PlanRecord) == 40 && offsetof(PlanRecord, epoch) == 16);
static_assert(sizeof(PlanGenerationRecord) == 16);

}  // namespace deft::shm
