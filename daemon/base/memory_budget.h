// Counts the shared memory that the daemon gives out, and keeps it within a limit.
//
//   MemoryBudget budget(config.bytes("memory_limit"));
//   auto segment = budget.allocate("deft-arena", bytes);
//
// Copies share the count, so work on another thread takes a copy along and may outlive the daemon's own. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/shm/segment.h"

namespace deft::daemon {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Makes a segment of `bytes`. kExhausted if the limit forbids it, or if the machine has not enough memory. The budget gets the
  // bytes back when the last owner releases the segment, on any thread.
  Result<std::shared_ptr<shm::Segment>> allocate(const std::string& label, std::uint64_t bytes) const {
    const std::uint64_t before = used_->fetch_add(bytes);
    if (before + bytes > limit_bytes_ || before + bytes < before) {
      *used_ -= bytes;
      return fail(ErrorKind::kExhausted,
                  "the daemon's shared memory is full: " + std::to_string(bytes) + " bytes asked for, " +
                      std::to_string(before) + " of " + std::to_string(limit_bytes_) + " in use",
                  "raise DEFT_MEMORY_LIMIT of deftd, or train a smaller model");
    }
    auto segment = shm::Segment::create(label, bytes);
    if (!segment) {
      *used_ -= bytes;
      return tl::unexpected(segment.error());
    }
    return std::shared_ptr<shm::Segment>(new shm::Segment(std::move(*segment)), [used = used_, bytes](shm::Segment* s) {
      delete s;
      *used -= bytes;
    });
  }

  [[nodiscard]] std::uint64_t used_bytes() const { return *used_; }
  [[nodiscard]] std::uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  const std::uint64_t limit_bytes_;
  const std::shared_ptr<std::atomic<std::uint64_t>> used_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace deft::daemon
