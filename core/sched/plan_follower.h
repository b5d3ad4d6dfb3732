// Follows a plan online: which launch is next on which link, and when each generation is applied.
//
//   PlanFollower follower(plan, buckets, first_step, first_generation);
//   follower.reach(step);                  // a step begins: its generation's update point is decided
//   follower.ready(bucket, step);
//   follower.take(launches);               // all that is due, each link in the plan's order
//
// Work-conserving: a part goes to its link as soon as all before it on that link have gone and its bucket is ready.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/plan.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class PlanFollower {
 public:
  // The plan's cycles begin at `first_step` with generation `first_generation`. No generation is applied before
  // `first_apply`, so that the generations of the plan before this one are older in every bucket.
  PlanFollower(model::Plan plan, std::size_t buckets, std::uint64_t first_step, std::uint64_t first_generation,
               std::uint64_t first_apply = 0);

  void reach(std::uint64_t step, std::vector<Update>& updates);  // appends what is decided now
  void ready(model::BucketIndex bucket, std::uint64_t step) { ready_[bucket] = std::max(ready_[bucket], step + 1); }
  void take(std::vector<Launch>& launches);  // their ids are left to the caller

  // Ends the plan with the cycle that has been reached; says where the next plan begins.
  struct End {
    std::uint64_t step;
    std::uint64_t generation;
    std::uint64_t apply;
  };
  End end();
  [[nodiscard]] bool done() const;  // ended, and all has been taken
  [[nodiscard]] const model::Plan& plan() const { return plan_; }

 private:
  struct Cursor {
    std::uint64_t cycle = 0;
    std::size_t next = 0;
  };
  [[nodiscard]] Update update(std::uint64_t generation) const;  // counted from the plan's beginning; bucket unset
  bool finished(Cursor& cursor, std::size_t link) const;

  model::Plan plan_;
  std::uint64_t first_step_;
  std::uint64_t first_generation_;
  std::uint64_t first_apply_;
  std::optional<std::uint64_t> generations_;  // how many there are in all, once the plan has been ended
  std::uint64_t decided_ = 0;                 // generations whose updates have been given
  std::vector<std::uint64_t> ready_;          // of each bucket, one more than the newest step that is ready
  std::vector<Cursor> cursors_;               // of each link
};

}  // namespace deft::sched
