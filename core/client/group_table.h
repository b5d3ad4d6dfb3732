// The declared groups of a session: which generation of each tensor is reduced, and the schedules of the generations.
//
//   const auto turn = groups.declaring();                        // one thread declares at a time
//   const auto number = groups.add(progress, generations);       // on all ranks in the same order
//
// finish() and take_plan() run under the connection's lock. All other functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/client/connection.h"
#include "core/client/generations.h"

namespace deft::client {

// The newest reduced generation of each tensor of a group. Written by the thread that looks at the ring, read by all.
class TensorProgress {
 public:
  explicit TensorProgress(std::size_t tensors) : next_(tensors) {}
  [[nodiscard]] std::size_t tensors() const { return next_.size(); }
  // True if the tensors [first, first + count), which exist, are reduced.
  [[nodiscard]] bool finished(std::size_t first, std::size_t count, std::uint64_t generation) const;
  void finish(std::size_t first, std::size_t count, std::uint64_t generation);

 private:
  std::vector<std::atomic<std::uint64_t>> next_;  // the first generation that is not reduced
};

class GroupTable {
 public:
  explicit GroupTable(Connection& connection) : connection_(connection) {}

  // Locks declaring for the caller.
  std::unique_lock<std::mutex> declaring() { return std::unique_lock(declare_mutex_); }
  // Adds a group, and gives its number. The caller holds declaring().
  std::uint32_t add(std::shared_ptr<TensorProgress> progress, std::shared_ptr<Generations> generations);

  // Takes a record of the daemon. kViolation if it names a group or tensor that was not declared.
  Result<void> finish(const shm::FinishRecord& finished);
  template <typename PlanPart>  // PlanRecord, PlanGenerationRecord
  Result<void> take_plan(const PlanPart& part) {
    if (part.group >= groups_.size()) return tl::unexpected(violation("a plan for tensors that were not declared"));
    return groups_[part.group].generations->receive(part);
  }

 private:
  struct Entry {
    std::shared_ptr<TensorProgress> progress;
    std::shared_ptr<Generations> generations;
  };
  Connection& connection_;
  std::mutex declare_mutex_;
  std::vector<Entry> groups_;
};

}  // namespace deft::client
