// What a daemon tells a worker by records of the ring (record.h), a struct for each kind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shm/record_kind.h"

namespace deft::shm {

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
  std::uint32_t tells_segments = 0;  // 1: with a SEGMENT for what it sends and receives
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
  std::uint32_t tells_segments = 0;
  std::uint32_t unused = 0;
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

static_assert(sizeof(FinishRecord) == 24 && offsetof(FinishRecord, generation) == 16);
static_assert(sizeof(OperationDoneRecord) == 16 && offsetof(OperationDoneRecord, error_kind) == 8);
static_assert(sizeof(StartRecord) == 40 && offsetof(StartRecord, launch) == 16);
static_assert(sizeof(StartCollectiveRecord) == 56 && offsetof(StartCollectiveRecord, launch) == 8);
static_assert(sizeof(FailedRecord) == 8);
static_assert(sizeof(TraceBeganRecord) == 8);
static_assert(sizeof(ReleasedRecord) == 8);
static_assert(sizeof(PlanRecord) == 40 && offsetof(PlanRecord, epoch) == 16);
static_assert(sizeof(PlanGenerationRecord) == 16);

}  // namespace deft::shm
