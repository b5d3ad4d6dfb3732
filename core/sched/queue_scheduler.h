// The common part of the synchronous policies that send ready buckets in some order, a part at a time.
//
// A policy says in which order buckets go and how large a launch may be; this class keeps the queue, spreads parts over
// the links by earliest finish and holds back what is beyond a link's window, so that a more urgent bucket that becomes
// ready later still overtakes at the next part.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/sched/link_board.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class QueueScheduler : public Scheduler {
 public:
  void stage_began(Stage, std::uint64_t, TimeUs, TimeUs) override {}
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) override;
  void part_finished(const Launch& launch, TimeUs now_us) override { board_.finish(launch, now_us); }
  void link_measured(model::LinkIndex link, const model::LinkModel& measured) override {
    board_.measured(link, measured);
  }
  std::vector<Launch> take_launches(TimeUs now_us) override;
  std::vector<Update> take_updates() override { return std::exchange(updates_, {}); }

 protected:
  struct Rules {
    std::uint64_t part_bytes;    // parts are at most this large
    std::uint64_t window_bytes;  // bytes on their way on each link, at most
    bool by_priority;            // order of the forward positions; otherwise the order of readiness
    bool join_parts;             // neighbouring parts that go to one link at once become one launch
    double part_us = 0;          // slow links: parts of about this time, and two of them on their way; 0: no such bound
  };
  QueueScheduler(const Setup& setup, const Rules& rules);

 private:
  // A ready bucket of which [sent, bytes) is still to go. Ordered by generation, then urgency, then readiness.
  struct Task {
    std::uint64_t generation;
    std::uint32_t urgency;
    std::uint64_t arrival;
    model::BucketIndex bucket;
    auto operator<=>(const Task&) const = default;
  };
  struct Progress {
    std::uint64_t sent = 0;
    std::uint64_t part_bytes = 0;
  };
  // The launches that one call of take_launches is putting together.
  struct Draft {
    std::vector<double> free_at_us;            // of each link, with all that was placed on it
    std::vector<std::uint64_t> planned_bytes;  // of each link, in `launches`
    std::vector<Launch> launches;
    int looks;  // how many more parts may be considered
  };
  // Whether any link could still take a part besides what is drafted.
  [[nodiscard]] bool any_room(const std::vector<std::uint64_t>& planned_bytes) const;
  [[nodiscard]] std::uint64_t part_limit() const;
  [[nodiscard]] model::LinkIndex earliest_finish(const Draft& draft, std::uint64_t bytes) const;
  // Decides for each part that is left of `task` on which link it finishes first, and drafts those for which that link
  // has room now. True when all of the task has been launched.
  bool place(const Task& task, Progress& progress, Draft& draft) const;
  void append(const Launch& launch, Draft& draft) const;

  Rules rules_;
  std::vector<model::Bucket> buckets_;
  LinkBoard board_;
  std::map<Task, Progress> queue_;
  std::uint64_t arrivals_ = 0;
  std::uint64_t launches_ = 0;
  std::vector<Update> updates_;
};

}  // namespace deft::sched
