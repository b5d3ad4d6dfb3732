// The shared memory that one worker has of the daemon: an arena for each group, and staging buffers for its
// collectives.
//
//   auto arena = memory.make_arena(group, bytes);
//   auto buffer = memory.make_buffer(number, bytes);   ...   memory.free_buffer(number);
//
// All of it counts against the daemon's budget. A job that still uses a segment keeps it alive. Reactor thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "daemon/base/memory_budget.h"

namespace deft::daemon {

class WorkerMemory {
 public:
  using Memory = std::shared_ptr<shm::Segment>;
  static constexpr std::size_t kMaxBuffers = 256;

  explicit WorkerMemory(MemoryBudget& budget) : budget_(budget) {}

  Result<Memory> make_arena(std::uint32_t group, std::uint64_t bytes);

  // kViolation: the worker has a buffer of that number, or no buffer has so many bytes. kExhausted: no memory is left,
  // or the worker has too many buffers.
  Result<Memory> make_buffer(std::uint32_t number, std::uint64_t bytes);
  void free_buffer(std::uint32_t number) { buffers_.erase(number); }
  [[nodiscard]] Memory find_buffer(std::uint32_t number) const;  // null: there is none

 private:
  MemoryBudget& budget_;
  std::vector<Memory> arenas_;  // by group
  std::map<std::uint32_t, Memory> buffers_;
};

}  // namespace deft::daemon
