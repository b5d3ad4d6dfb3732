// The kinds of the rings' records (record.h).
#pragma once

#include <cstdint>

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
  kSegment = 10,
  kRunning = 11,
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

}  // namespace deft::shm
