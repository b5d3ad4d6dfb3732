// What a worker tells its daemon by records of the ring (record.h), a struct for each kind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shm/record_kind.h"

namespace deft::shm {

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

// RUNNING: the worker runs this launch on an in-process link, and waits for other ranks. It says so again and again while it waits: a
// worker that is stopped says nothing.
struct RunningRecord {
  static constexpr RecordKind kKind = RecordKind::kRunning;
  std::uint32_t link = 0;
  std::uint32_t unused = 0;
  std::uint64_t launch = 0;
};

// SEGMENT: what the worker has sent to another rank for a START or START_COLLECTIVE, or received from it. Only if that one asks
// for it, and before the RAN that answers it. Times are the machine's (MonotonicClock).
struct SegmentRecord {
  static constexpr RecordKind kKind = RecordKind::kSegment;
  std::uint32_t link = 0;
  std::uint32_t peer_rank = 0;
  std::uint64_t launch = 0;
  std::uint64_t bytes = 0;
  std::uint64_t began_us = 0;
  std::uint64_t ended_us = 0;
  std::uint32_t part = 0;     // model::SegmentPart
  std::uint32_t is_sent = 0;  // 1: sent; 0: received
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

static_assert(sizeof(ReadyRecord) == 40 && offsetof(ReadyRecord, generation) == 16);
static_assert(sizeof(StageRecord) == 24 && offsetof(StageRecord, step) == 8);
static_assert(sizeof(RanRecord) == 16 && offsetof(RanRecord, launch) == 8);
static_assert(sizeof(RunningRecord) == 16 && offsetof(RunningRecord, launch) == 8);
static_assert(sizeof(SegmentRecord) == 48 && offsetof(SegmentRecord, launch) == 8);
static_assert(sizeof(FlushRecord) == 16 && offsetof(FlushRecord, step) == 8);
static_assert(sizeof(SendResidualsRecord) == 16 && offsetof(SendResidualsRecord, step) == 8);
static_assert(sizeof(ReleaseRecord) == 8);

}  // namespace deft::shm
