// Follows a plan online: which launch is next on which link.
//
//   PlanFollower follower(plan, buckets, calendar, first_step);  // the calendar follows the plan's cycle from there on
//   follower.ready(bucket, step);
//   follower.take(launches);               // all that is due, each link in the plan's order
//
// Work-conserving: a part goes to its link as soon as all before it on that link have gone and its bucket is ready. The
// plan ends where the calendar says so, be it in mid-cycle: generations that never begin are left out.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/calendar.h"
#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class PlanFollower {
 public:
  // `calendar` outlives the follower, and has a stretch that begins at `first_step`.
  PlanFollower(model::Plan plan, std::size_t buckets, const model::Calendar& calendar, std::uint64_t first_step)
      : plan_(std::move(plan)),
        calendar_(calendar),
        first_step_(first_step),
        ready_(buckets),
        cursors_(plan_.links.size()) {}

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
  [[nodiscard]] std::uint64_t generations() const;  // that the plan has had when it ends
  bool finished(Cursor& cursor, std::size_t link, std::uint64_t generations) const;

  model::Plan plan_;
  const model::Calendar& calendar_;
  std::uint64_t first_step_;
  std::vector<std::uint64_t> ready_;  // of each bucket, one more than the newest step that is ready
  std::vector<Cursor> cursors_;       // of each link
};

}  // namespace deft::sched
