// Keeps which generations of a group's buckets are complete and when they are applied, for a policy with delayed updates.
//
//   UpdateLedger ledger(buckets, reports);
//   ledger.follow(step, plan.cycles);                 // the cycles in force from `step` on
//   ledger.reach(step);                                   // decides the updates that begin with `step`
//   ledger.ready(bucket, step, [&](const UpdateWindow& complete) { ... });   // called for each generation that is complete
//
// A generation is complete when all its gradients are in the arena. Pure and not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/model/update_schedule.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class UpdateLedger {
 public:
  // If `reports` is false, take_updates gives nothing.
  UpdateLedger(std::size_t buckets, bool reports)
      : reports_(reports), schedules_(buckets), decided_(buckets), ready_(buckets), complete_(buckets) {}

  void follow(std::uint64_t step, const model::UpdateCycles& cycles) { model::follow(schedules_, step, cycles); }
  // All workers flush before `step`.
  void cut(std::uint64_t step) { model::cut(schedules_, step); }

  // Decides the updates that merge `step`. Call it once for each step, in order.
  void reach(std::uint64_t step) {
    if (!reports_) return;
    for (model::BucketIndex b = 0; b < schedules_.size(); ++b)
      for (auto due = schedules_[b].at(decided_[b]); due.first_step <= step; due = schedules_[b].at(++decided_[b]))
        updates_.push_back({b, due.generation, due.first_step, due.last_step, due.apply_step});
  }
  std::vector<Update> take_updates() { return std::exchange(updates_, {}); }

  // Calls visit(window) for each generation of `bucket` that is complete now that the gradients of `step` are ready.
  template <typename Visit>
  void ready(model::BucketIndex bucket, std::uint64_t step, const Visit& visit) {
    ready_[bucket] = std::max(ready_[bucket], step + 1);
    visit_complete(bucket, visit);
  }
  // Calls visit(window) for each generation of `bucket` that a cut has completed.
  template <typename Visit>
  void visit_complete(model::BucketIndex bucket, const Visit& visit) {
    for (auto due = schedules_[bucket].at(complete_[bucket]); due.last_step < ready_[bucket];
         due = schedules_[bucket].at(++complete_[bucket]))
      visit(due);
  }

  // The first generation of `bucket` that is not complete.
  [[nodiscard]] model::UpdateWindow next(model::BucketIndex bucket) const {
    return schedules_[bucket].at(complete_[bucket]);
  }
  [[nodiscard]] const std::vector<model::UpdateSchedule>& schedules() const { return schedules_; }

 private:
  bool reports_;
  std::vector<model::UpdateSchedule> schedules_;  // [bucket], as the vectors below
  std::vector<std::uint64_t> decided_;            // how many updates were decided
  std::vector<std::uint64_t> ready_;              // the newest step that is ready, plus 1
  std::vector<std::uint64_t> complete_;           // how many generations were complete
  std::vector<Update> updates_;
};

}  // namespace deft::sched
