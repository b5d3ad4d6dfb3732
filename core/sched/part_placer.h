// Spreads the parts of ready buckets over the links by earliest finish, and holds back what is beyond a link's window, so
// that a more urgent bucket that becomes ready later still overtakes at the next part.
//
//   PartPlacer parts(queue, board, rules);
//   for (Launch& launch : parts.take(now_us)) send(launch);   // takes from `queue` what should go now
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/sched/synchronous_scheduler.h"

namespace deft::sched {

class PartPlacer {
 public:
  struct Rules {
    SizeLimit part;    // the largest part, by the rate of the fastest link
    SizeLimit window;  // the most that is in flight on each link
    bool by_priority;  // order of the forward positions; otherwise the order of readiness
    bool join_parts;   // neighbouring parts that go to one link at once become one launch
  };
  // `queue` and `board` outlive this.
  PartPlacer(std::deque<ReadyTask>& queue, LinkBoard& board, const Rules& rules);

  void change_rules(const Rules& rules);
  // The window of the rules holds on `board` from now on.
  void apply_window() { board_.set_window(rules_.window); }
  [[nodiscard]] bool by_priority() const { return rules_.by_priority; }
  [[nodiscard]] std::uint64_t part_limit() const;  // bytes
  std::vector<Launch> take(TimeUs now_us);

 private:
  // What one call of take is putting together.
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

  std::deque<ReadyTask>& queue_;
  LinkBoard& board_;
  Rules rules_;
  Draft draft_;  // kept between calls for its memory alone
};

}  // namespace deft::sched
