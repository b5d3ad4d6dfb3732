// The common part of the synchronous policies that send ready buckets in some order, a part at a time.
//
// A policy says in which order buckets go and how large a launch may be; this class spreads parts over the links by
// earliest finish and holds back what is beyond a link's window, so that a more urgent bucket that becomes ready later
// still overtakes at the next part.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/synchronous_scheduler.h"

namespace deft::sched {

class QueueScheduler : public SynchronousScheduler {
 public:
  void stage_began(Stage, std::uint64_t, TimeUs, TimeUs) override {}
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  std::vector<Launch> take_launches(TimeUs now_us) override;

 protected:
  struct Rules {
    SizeLimit part;    // the largest part, by the rate of the fastest link
    SizeLimit window;  // the most that is on its way on each link
    bool by_priority;  // order of the forward positions; otherwise the order of readiness
    bool join_parts;   // neighbouring parts that go to one link at once become one launch
  };
  QueueScheduler(const Setup& setup, const Rules& rules);

  // Buckets whole and in the order of readiness; `largest_bytes`: the largest of them.
  static Rules in_order(const Setup& setup, std::uint64_t largest_bytes);
  void change_rules(const Rules& rules);
  [[nodiscard]] std::uint64_t part_limit() const;

 private:
  // What one call of take_launches is putting together.
  struct Draft {
    std::vector<double> free_at_us;            // of each link, with all that was placed on it
    std::vector<std::uint64_t> planned_bytes;  // of each link, in `launches`
    std::vector<Launch> launches;
    int looks;  // how many more parts may be considered
  };
  // The largest part that any link could still take besides what is drafted.
  [[nodiscard]] std::uint64_t most_room() const;
  // Whether one of the parts that may still be considered, from the task at `position` on, has that much room.
  [[nodiscard]] bool any_fits(std::size_t position) const;
  // The link on which a part of `bytes` finishes first, with all before it; it then counts as taken by that part.
  model::LinkIndex give_to_earliest(std::uint64_t bytes);
  // Decides for each part that is left of the task at `position` on which link it finishes first, and drafts those for
  // which that link has room now. True when all of the task has been launched.
  bool place(std::size_t position);
  void append(const Launch& launch);

  Rules rules_;
  Draft draft_;  // kept between calls for its memory alone
};

}  // namespace deft::sched
