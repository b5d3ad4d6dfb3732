// Follows a plan online: which launch is next on which link.
//
//   PlanFollower follower(plan, calendars, first_step);  // the buckets' calendars follow the plan's cycles from there on
//   follower.ready(bucket, step);
//   follower.take(launches);               // all that is due, each link in the plan's order
//
// Work-conserving: a part goes to its link as soon as all before it on that link have gone and its bucket is ready. The
// plan ends where the calendar says so, be it in mid-cycle: generations that never begin are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/model/calendar.h"
#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class PlanFollower {
 public:
  // `calendars` of the buckets outlive the follower, and have a stretch that begins at `first_step`.
  PlanFollower(model::Plan plan, const std::vector<model::Calendar>& calendars, std::uint64_t first_step)
      : plan_(std::move(plan)),
        calendars_(calendars),
        first_step_(first_step),
        ready_(calendars.size()),
        cursors_(plan_.links.size()) {
    for (const auto& list : plan_.links) {
      most_back_.push_back(0);
      for (const auto& part : list) most_back_.back() = std::max(most_back_.back(), part.cycles_back);
    }
  }

  void ready(model::BucketIndex bucket, std::uint64_t step) { ready_[bucket] = std::max(ready_[bucket], step + 1); }
  void take(std::vector<Launch>& launches);  // their ids are left to the caller

  [[nodiscard]] bool done() const;  // the plan has ended, and all has been taken
  [[nodiscard]] const model::Plan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t first_step() const { return first_step_; }

 private:
  struct Cursor {
    std::uint64_t cycle = 0;
    std::size_t next = 0;
  };
  [[nodiscard]] std::uint64_t cycles() const;  // that the plan has begun when it ends
  [[nodiscard]] std::uint64_t first_generation(model::BucketIndex bucket) const;
  [[nodiscard]] std::uint64_t generation_of(const Cursor& cursor, const model::PlanPart& part) const;
  [[nodiscard]] bool begins(model::BucketIndex bucket, std::uint64_t generation) const;
  bool finished(Cursor& cursor, std::size_t link) const;

  model::Plan plan_;
  const std::vector<model::Calendar>& calendars_;  // of the buckets
  std::uint64_t first_step_;
  std::vector<std::uint64_t> ready_;      // of each bucket, one more than the newest step that is ready
  std::vector<Cursor> cursors_;           // of each link
  std::vector<std::uint32_t> most_back_;  // of each link's parts
};

}  // namespace deft::sched
