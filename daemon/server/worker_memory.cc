#include "daemon/server/worker_memory.h"

#include <algorithm>

#include "core/model/tensors.h"

namespace deft::daemon {

Result<WorkerMemory::Memory> WorkerMemory::make_arena(std::uint32_t group, std::uint64_t bytes) {
  auto arena = budget_.allocate("deft-arena", bytes);
  if (!arena) return arena;
  arenas_.resize(std::max<std::size_t>(arenas_.size(), group + 1));
  arenas_[group] = *arena;
  return arena;
}

Result<WorkerMemory::Memory> WorkerMemory::make_buffer(std::uint32_t number, std::uint64_t bytes) {
  if (bytes == 0 || bytes > model::kMaxArenaBytes || buffers_.count(number) != 0)
    return fail(ErrorKind::kViolation, "a staging buffer that cannot be made");
  if (buffers_.size() >= kMaxBuffers)
    return fail(ErrorKind::kExhausted, "this worker has " + std::to_string(kMaxBuffers) + " staging buffers already");
  auto buffer = budget_.allocate("deft-staging", bytes);
  if (buffer) buffers_[number] = *buffer;
  return buffer;
}

WorkerMemory::Memory WorkerMemory::find_buffer(std::uint32_t number) const {
  const auto found = buffers_.find(number);
  return found == buffers_.end() ? nullptr : found->second;
}

}  // namespace deft::daemon
