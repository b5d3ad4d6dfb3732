// The base of the synchronous policies that send ready buckets one part at a time: fifo, p3, bytescheduler, and by RunScheduler the
// policies that merge buckets. The Rules of a policy say in which order buckets go and how large a launch may be. PartPlacer spreads
// the parts over the links.
//
//   class Fifo : public QueueScheduler { public: explicit Fifo(const Setup& s) : QueueScheduler(s, in_order(s, largest)) {} };
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/sched/synchronous_scheduler.h"

namespace deft::sched {

// Spreads the parts of ready buckets over the links: each part goes to the link on which it finishes first. Parts beyond the
// window of a link are held back, so that a more urgent bucket that becomes ready later overtakes them.
//
//   PartPlacer parts(queue, board, rules);
//   for (Launch& launch : parts.take(now_us)) send(launch);   // takes from `queue` the parts that should go now
//
// Pure and not thread-safe.
class PartPlacer {
 public:
  struct Rules {
    SizeLimit part;    // the largest part, by the throughput of the fastest link that is not lost
    SizeLimit window;  // the most bytes in flight on each link
    bool by_priority;  // true: in the order of forward positions; false: in the order of readiness
    bool join_parts;   // true: neighbouring parts that go to one link at once become one launch
  };
  // `queue` and `board` must outlive this object.
  PartPlacer(std::deque<ReadyTask>& queue, LinkBoard& board, const Rules& rules);

  void change_rules(const Rules& rules);
  // Sets the window of the rules on `board`.
  void apply_window() { board_.set_window(rules_.window); }
  [[nodiscard]] bool by_priority() const { return rules_.by_priority; }
  [[nodiscard]] std::uint64_t part_limit() const;  // in bytes
  std::vector<Launch> take(TimeUs now_us);

 private:
  // The launches that one call of take() puts together.
  struct Draft {
    std::vector<double> free_at_us;            // [link]: when it is free after all parts that were placed on it
    std::vector<std::uint64_t> planned_bytes;  // [link]: its bytes in `launches`
    std::vector<Launch> launches;
    int looks;  // how many more parts may be considered
  };
  // The largest part that any link could still take besides the parts that are drafted.
  [[nodiscard]] std::uint64_t most_room() const;
  // True if a part of the task at `position`, or of a later one that may still be considered, fits into that room.
  [[nodiscard]] bool any_fits(std::size_t position) const;
  // Decides for each remaining part of the task at `position` on which link it finishes first. Drafts the part if that link has
  // room now. True if the whole task has been launched.
  bool place(std::size_t position);
  void append(const Launch& launch);

  std::deque<ReadyTask>& queue_;
  LinkBoard& board_;
  Rules rules_;
  Draft draft_;  // a member only to keep its memory between calls
};

class QueueScheduler : public SynchronousScheduler {
 public:
  void stage_began(Stage, std::uint64_t, TimeUs, TimeUs) override {}
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  std::vector<Launch> take_launches(TimeUs now_us) override;

 protected:
  using Rules = PartPlacer::Rules;
  QueueScheduler(const Setup& setup, const Rules& rules);

  // Rules that send whole buckets in the order of readiness. `largest_bytes` is the size of the largest bucket.
  static Rules in_order(const Setup& setup, std::uint64_t largest_bytes);
  void change_rules(const Rules& rules) { parts_.change_rules(rules); }
  [[nodiscard]] std::uint64_t part_limit() const { return parts_.part_limit(); }

 private:
  PartPlacer parts_;
};

}  // namespace deft::sched
