// The records by which a worker tells of the memory of a step while a trace is written: LAYER and MEMORY records, in any number,
// and one MEMORY_STEP behind them. record.h documents records.
#pragma once

#include "core/shm/record.h"

namespace deft::shm {

// LAYER: one call of a module with parameters, in the order of forward.
struct LayerRecord {
  static constexpr RecordKind kKind = RecordKind::kLayer;
  std::uint32_t group = 0;
  std::uint32_t layer = 0;   // counts up from 0
  std::uint32_t tensor = 0;  // the first that backward produces of the layer's
  std::uint32_t unused = 0;
  std::uint64_t forward_ns = 0;  // until the next layer began, waits left out; 0: not measured
};

// MEMORY: bytes that a step held. trace::MemoryTrace (core/trace/record.h) explains the fields.
struct MemoryRecord {
  static constexpr RecordKind kKind = RecordKind::kMemory;
  std::uint32_t part = 0;  // trace::MemoryPart
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t input_of = 0;
  std::uint64_t bytes = 0;
  std::uint64_t growing = 0;
};

// MEMORY_STEP: ends the records of a step.
struct MemoryStepRecord {
  static constexpr RecordKind kKind = RecordKind::kMemoryStep;
  std::uint32_t layers = 0;   // LAYER records before it
  std::uint32_t amounts = 0;  // MEMORY records before it
  std::uint32_t samples = 0;  // of the batch; 0: not known
  std::uint32_t unused = 0;
  std::uint64_t step = 0;
};

static_assert(sizeof(LayerRecord) == 24 && offsetof(LayerRecord, forward_ns) == 16);
static_assert(sizeof(MemoryRecord) == 32 && offsetof(MemoryRecord, bytes) == 16);
static_assert(sizeof(MemoryStepRecord) == 24 && offsetof(MemoryStepRecord, step) == 16);

}  // namespace deft::shm
