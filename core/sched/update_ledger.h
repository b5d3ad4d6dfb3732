// Which generations of a group's buckets are complete, and when they are applied: what a policy with delayed updates keeps
// of every bucket.
//
//   UpdateLedger ledger(buckets, reports);
//   ledger.follow(step, cycles_of(plan));                 // from `step` on
//   ledger.reach(step);                                   // decides the updates that begin with `step`
//   ledger.ready(bucket, step, [&](const UpdateWindow& complete) { ... });   // all of its gradients are in the arena
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
  // `reports`: take_updates gives what was decided; otherwise nothing is kept for it.
  UpdateLedger(std::size_t buckets, bool reports)
      : reports_(reports), schedules_(buckets), decided_(buckets), ready_(buckets), complete_(buckets) {}

  void follow(std::uint64_t step, const model::UpdateCycles& cycles) { model::follow(schedules_, step, cycles); }
  // A flush before `step`.
  void cut(std::uint64_t step) { model::cut(schedules_, step); }

  // Nothing of `step` has been decided before.
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
  // The same for generations that a cut has ended.
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
  std::vector<model::UpdateSchedule> schedules_;  // of the buckets, as all below
  std::vector<std::uint64_t> decided_;            // generations whose updates were decided
  std::vector<std::uint64_t> ready_;              // one more than the newest step that is ready
  std::vector<std::uint64_t> complete_;           // generations that were complete
  std::vector<Update> updates_;
};

}  // namespace deft::sched
