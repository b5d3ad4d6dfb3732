#include "daemon/server/worker_memory.h"

#include <optional>
#include <string>
#include <utility>

#include "core/model/tensors.h"
#include "core/shm/layout.h"

namespace deft::daemon {
namespace {

// The user has the memory until the last owner releases it, also a job that outlives the worker.
struct Charge {
  Charge(std::shared_ptr<QuotaAccount> of, std::uint64_t of_bytes) : account(std::move(of)), bytes(of_bytes) {}
  ~Charge() {
    account->give_back(Quota::kMemoryBytes, bytes);
    account->give_back(Quota::kDescriptors, 1);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  const std::shared_ptr<QuotaAccount> account;
  const std::uint64_t bytes;
};

Result<std::shared_ptr<Charge>> charge(const std::shared_ptr<QuotaAccount>& account, std::uint64_t bytes) {
  if (auto ok = account->take(Quota::kDescriptors, 1); !ok) return tl::unexpected(ok.error());
  if (auto ok = account->take(Quota::kMemoryBytes, bytes); !ok) {
    account->give_back(Quota::kDescriptors, 1);
    return tl::unexpected(ok.error());
  }
  return std::make_shared<Charge>(account, bytes);
}

// Any thread.
WorkerMemory::Made make(const MemoryBudget& budget, const char* label, const std::shared_ptr<Charge>& charge,
                        const BlockingWork::Runner& elsewhere) {
  auto memory = budget.allocate(label, charge->bytes);
  if (!memory) return memory;
  struct Owned {  // the memory goes first
    std::shared_ptr<Charge> charge;
    WorkerMemory::Memory memory;
  };
  const auto release = [elsewhere](Owned* owned) {
    std::shared_ptr<Owned> last(owned);
    if (last->charge->bytes <= WorkerMemory::kMuchBytes) return;
    elsewhere(BlockingWork::kNobody, [last = std::move(last)] {});
  };
  const std::shared_ptr<Owned> owned(new Owned{charge, *std::move(memory)}, release);
  return WorkerMemory::Memory(owned, owned->memory.get());
}

}  // namespace

void WorkerMemory::allocate(const char* label, std::uint64_t bytes, Then then) {
  if (bytes > kMuchBytes) return allocate_elsewhere(label, bytes, std::move(then));
  const auto charged = charge(account_, bytes);
  then(charged ? make(budget_, label, *charged, reactor_.runner()) : tl::unexpected(charged.error()));
}

void WorkerMemory::allocate_elsewhere(const char* label, std::uint64_t bytes, Then then) {
  const auto charged = charge(account_, bytes);
  if (!charged) return then(tl::unexpected(charged.error()));
  const auto made = std::make_shared<Made>();
  reactor_.offload(
      account_->user(),
      [budget = budget_, label, charged = *charged, made, elsewhere = reactor_.runner()] {
        *made = make(budget, label, charged, elsewhere);
      },
      [made, then = std::move(then), alive = std::weak_ptr(alive_)] {
        if (!alive.expired()) then(std::move(*made));
      });
}

void WorkerMemory::make_rings(std::function<void(Result<void>)> made) {
  allocate_elsewhere("deft-rings", shm::kControlSegmentBytes, [this, made = std::move(made)](Made rings) {
    if (!rings) return made(tl::unexpected(rings.error()));
    rings_ = *std::move(rings);
    made({});
  });
}

void WorkerMemory::make_arena(std::uint32_t group, std::uint64_t bytes, Then then) {
  allocate("deft-arena", bytes, [this, group, then = std::move(then)](Made arena) {
    if (arena) arenas_[group] = *arena;
    then(std::move(arena));
  });
}

void WorkerMemory::free_arena(std::uint32_t group) {
  const auto found = arenas_.find(group);
  if (found == arenas_.end()) return;
  const Memory arena = std::move(found->second);
  arenas_.erase(found);
  if (arena->bytes() > kMuchBytes) return reactor_.offload(account_->user(), [arena] { arena->discard(); });
  arena->discard();
}

Result<void> WorkerMemory::make_buffer(std::uint32_t number, std::uint64_t bytes, Then then) {
  if (bytes == 0 || bytes > model::kMaxArenaBytes || buffers_.count(number) != 0)
    return fail(ErrorKind::kViolation, "a staging buffer that cannot be made");
  if (buffers_.size() >= kMaxBuffers) {
    then(fail(ErrorKind::kExhausted, "this worker has " + std::to_string(kMaxBuffers) + " staging buffers already"));
    return {};
  }
  buffers_[number] = nullptr;
  allocate("deft-staging", bytes, [this, number, then = std::move(then)](Made buffer) {
    const auto it = buffers_.find(number);
    if (it == buffers_.end()) return;  // the worker has given it back meanwhile
    if (buffer)
      it->second = *buffer;
    else
      buffers_.erase(it);
    then(std::move(buffer));
  });
  return {};
}

WorkerMemory::Memory WorkerMemory::find_buffer(std::uint32_t number) const {
  const auto found = buffers_.find(number);
  return found == buffers_.end() ? nullptr : found->second;
}

}  // namespace deft::daemon
