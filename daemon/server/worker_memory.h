// The shared memory that one worker has of the daemon: its rings, an arena for each group, and staging buffers for its collectives.
//
//   memory.make_rings([&](Result<void> made) { ... memory.rings() ... });
//   memory.make_arena(group, bytes, [&](WorkerMemory::Made arena) { ... });   ...   memory.free_arena(group);
//   memory.make_buffer(number, bytes, [&](WorkerMemory::Made buffer) { ... });   ...   memory.free_buffer(number);
//
// The kernel clears each page of it, so much memory is made, and given back, on another thread: the callback comes later, and not after
// this object's end. So are rings, because all workers of a job need theirs at the same time. Other little memory is made at once. All
// of it counts against the daemon's budget and its user's quota. A job that still uses a segment keeps it alive. Reactor thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "core/base/status.h"
#include "daemon/base/memory_budget.h"
#include "daemon/base/reactor.h"
#include "daemon/base/user_quotas.h"

namespace deft::daemon {

class WorkerMemory {
 public:
  using Memory = std::shared_ptr<shm::Segment>;
  using Made = Result<Memory>;
  using Then = std::function<void(Made)>;
  static constexpr std::size_t kMaxBuffers = 256;
  static constexpr std::uint64_t kMuchBytes = 4 << 20;  // takes about a millisecond to clear

  // `reactor` outlives this object. The memory may outlive both.
  WorkerMemory(Reactor& reactor, const MemoryBudget& budget, std::shared_ptr<QuotaAccount> account)
      : reactor_(reactor), budget_(budget), account_(std::move(account)) {}

  void make_rings(std::function<void(Result<void>)> made);
  [[nodiscard]] const Memory& rings() const { return rings_; }  // null: they are not made

  void make_arena(std::uint32_t group, std::uint64_t bytes, Then then);
  // The worker has said that it uses the arena no more, and nothing of it is under way. A worker that keeps it mapped loses the memory.
  void free_arena(std::uint32_t group);

  // kViolation: the worker has a buffer of that number, or no buffer has so many bytes. `then` gets kExhausted if no memory is left, or
  // if the worker has too many buffers.
  Result<void> make_buffer(std::uint32_t number, std::uint64_t bytes, Then then);
  void free_buffer(std::uint32_t number) { buffers_.erase(number); }
  [[nodiscard]] Memory find_buffer(std::uint32_t number) const;  // null: there is none

 private:
  void allocate(const char* label, std::uint64_t bytes, Then then);
  void allocate_elsewhere(const char* label, std::uint64_t bytes, Then then);

  Reactor& reactor_;
  const MemoryBudget budget_;
  const std::shared_ptr<QuotaAccount> account_;
  Memory rings_;
  std::map<std::uint32_t, Memory> arenas_;   // by group
  std::map<std::uint32_t, Memory> buffers_;  // null: it is being made
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace deft::daemon
