// The declared groups of a session: which generation of each tensor is reduced, and the schedules of the generations.
//
//   const auto turn = groups.declaring();                        // one thread declares at a time
//   const auto number = groups.add(progress, generations);       // on all ranks in the same order
//   groups.release(number, keep);                                // RELEASED of the daemon then takes the group away
//
// finish(), take_plan() and forget() run under the connection's lock. All other functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/client/connection.h"
#include "core/model/update_schedule.h"
#include "core/shm/layout.h"

namespace deft::client {

// The update schedules of a group's tensors, as the worker knows them. The plans that the daemon announces and the worker's own
// flushes change them.
//
//   const model::UpdateWindow now = generations.at(tensor, generation);
//   generations.cut(step);   // a flush
//
// No worker can reach the first step of a plan before a certain FINISH, and the daemon announces the plan before that FINISH.
// The ring keeps the order. So a worker that has waited for all updates that are due before a step knows that step's
// generation. Any thread.
class Generations {
 public:
  Generations(std::size_t tensors, std::uint32_t slots) : schedules_(tensors), slots_(slots) {}

  // The window of `generation` of a tensor that exists.
  [[nodiscard]] model::UpdateWindow at(std::size_t tensor, std::uint64_t generation) const;
  // Calls `visit(tensor, window)` for each tensor, in order: with the window of `step`, or of generations[tensor].
  template <typename Visit>
  void each_of_step(std::uint64_t step, Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t t = 0; t < schedules_.size(); ++t) visit(t, schedules_[t].of_step(step));
  }
  template <typename Visit>
  void each_at(const std::uint64_t* generations, Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t t = 0; t < schedules_.size(); ++t) visit(t, schedules_[t].at(generations[t]));
  }
  // Ends the generation under way before `step`, and begins the cycle anew.
  void cut(std::uint64_t step);

  // Takes a PLAN, and then its PLAN_GENERATIONs. kViolation if a number makes no sense.
  Result<void> receive(const shm::PlanRecord& plan);
  Result<void> receive(const shm::PlanGenerationRecord& generation);

 private:
  struct Announced {
    std::uint64_t step = 0;
    std::size_t first = 0;  // tensors [first, first + count)
    std::size_t count = 0;
    std::uint32_t missing = 0;  // so many generations have not come yet
    model::UpdateCycle cycle;
  };

  mutable std::mutex mutex_;
  std::vector<model::UpdateSchedule> schedules_;  // [tensor]
  std::uint32_t slots_;
  std::optional<Announced> announced_;  // a plan whose generations are still coming
};

// The newest reduced generation of each tensor of a group. Written by the thread that looks at the ring, read by all.
class TensorProgress {
 public:
  explicit TensorProgress(std::size_t tensors) : next_(tensors) {}
  [[nodiscard]] std::size_t tensors() const { return next_.size(); }
  // True if the tensors [first, first + count), which exist, are reduced.
  [[nodiscard]] bool finished(std::size_t first, std::size_t count, std::uint64_t generation) const;
  void finish(std::size_t first, std::size_t count, std::uint64_t generation);
  // The worker has released the group. A wait for gradients that are not reduced by now ends with an error.
  void release() { released_.store(true, std::memory_order_release); }
  [[nodiscard]] bool released() const { return released_.load(std::memory_order_acquire); }

 private:
  std::vector<std::atomic<std::uint64_t>> next_;  // the first generation that is not reduced
  std::atomic<bool> released_{false};
};

class GroupTable {
 public:
  explicit GroupTable(Connection& connection) : connection_(connection) {}

  // Locks declaring for the caller.
  std::unique_lock<std::mutex> declaring() { return std::unique_lock(declare_mutex_); }
  // Adds a group, and gives its number. The caller holds declaring().
  std::uint32_t add(std::shared_ptr<TensorProgress> progress, std::shared_ptr<Generations> generations);

  // The group was released. `keep` is kept until the daemon says that nothing of the group is under way.
  void release(std::uint32_t number, std::shared_ptr<void> keep);

  // Takes a record of the daemon. kViolation if it names a group or tensor that was not declared.
  Result<void> finish(const shm::FinishRecord& finished);
  template <typename PlanPart>  // PlanRecord, PlanGenerationRecord
  Result<void> take_plan(const PlanPart& part) {
    const auto group = groups_.find(part.group);
    if (group == groups_.end()) return tl::unexpected(violation("a plan for tensors that were not declared"));
    return group->second.generations->receive(part);
  }
  Result<void> forget(const shm::ReleasedRecord& released);

 private:
  struct Entry {
    std::shared_ptr<TensorProgress> progress;
    std::shared_ptr<Generations> generations;
    bool released = false;            // by this worker
    std::shared_ptr<void> kept = {};  // until the daemon says that nothing is under way
  };
  Connection& connection_;
  std::mutex declare_mutex_;
  std::map<std::uint32_t, Entry> groups_;
  std::uint32_t declared_ = 0;
};

}  // namespace deft::client
