// How far each declared group is: which generation of each tensor is reduced, and the plans that date the generations.
//
//   const auto turn = groups.declaring();                        // declarations follow each other
//   const auto number = groups.add(progress, generations);       // on all ranks in the same order
//
// finish() and take_plan() run under the connection's lock; all else may be called from any thread.
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
  // Of tensors [first, first + count), which exist.
  [[nodiscard]] bool finished(std::size_t first, std::size_t count, std::uint64_t generation) const;
  void finish(std::size_t first, std::size_t count, std::uint64_t generation);

 private:
  std::vector<std::atomic<std::uint64_t>> next_;  // the first generation that is not reduced
};

class GroupTable {
 public:
  explicit GroupTable(Connection& connection) : connection_(connection) {}

  // The holder is the only one to declare.
  std::unique_lock<std::mutex> declaring() { return std::unique_lock(declare_mutex_); }
  // The next group's number. Under declaring().
  std::uint32_t add(std::shared_ptr<TensorProgress> progress, std::shared_ptr<Generations> generations);

  // kViolation if a record names what was not declared.
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
