// The queue of buckets that are ready and have a due step by a plan: the earliest due step goes first.
//
//   DueQueue queue(setup, codecs);
//   queue.pace(plan.compute_us);                           // sets how long a part may occupy a link
//   queue.add({bucket, generation, due_step, priority});   // a ready bucket, to be applied before the forward of due_step
//   queue.expect_urgent(at_us);                            // an urgent bucket will be ready then; no part should delay it
//   queue.take(now_us, launches);                          // appends the launches that the links have room for
//   queue.finish(launch, now_us);                          // then take again
//
// The plan decides when a generation is applied, and the order of launches follows from that. A link with room takes the ready
// bucket that is due first; of several it takes the bucket that forward needs first. So no link is idle while a bucket is
// ready, and stale buckets fill the gaps. Parts end when an urgent bucket is expected. If the forecast is wrong, the urgent
// bucket waits for two parts at most. A part goes to the link that is free first, unless the whole rest would finish earlier
// on another link. The last parts that wait are cut so that all links end together. Small buckets do not wait for room: links carry
// them on their priority channel (core/model/buckets.h).
//
// A task may be encoded. Links know wire bytes alone, so the queue books those; launches say which gradients they carry.
//
// Pure and not thread-safe, as the schedulers are. The driver passes all times, in microseconds.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "core/base/clock.h"
#include "core/model/update_schedule.h"
#include "core/sched/launch_codecs.h"
#include "core/sched/link_board.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class DueQueue {
 public:
  // A ready bucket with its date.
  struct Task {
    model::BucketIndex bucket = 0;
    std::uint64_t generation = 0;
    std::uint64_t due_step = 0;
    std::uint32_t priority = 0;  // among the tasks of one due step the lower priority goes first
    model::CodecIndex codec = 0;
  };

  // `codecs` outlives the queue.
  DueQueue(const Setup& setup, const LaunchCodecs& codecs);

  // Sets the compute time of a step. A part lasts a small share of it, so that an urgent bucket waits little, but much longer
  // than a link's latency.
  void pace(double compute_us) { compute_us_ = compute_us; }
  // Says when a bucket is expected that is more urgent than all waiting ones; empty: none is expected. Parts end by then.
  void expect_urgent(std::optional<double> at_us) { urgent_us_ = at_us; }
  void add(const Task& task);
  // Takes the due steps anew from `schedules`, which has one for each bucket.
  void update_due_steps(const std::vector<model::UpdateSchedule>& schedules);
  void take(TimeUs now_us, std::vector<Launch>& launches);

  void finish(const Launch& launch, TimeUs now_us);
  void measured(model::LinkIndex link, const model::LinkModel& model) { board_.measured(link, model); }
  void remove(model::LinkIndex link) { board_.remove(link); }

 private:
  struct Waiting {
    Task task;
    std::uint64_t bytes;
    std::uint64_t sent = 0;

    bool operator<(const Waiting& other) const {
      return std::tie(task.due_step, task.priority) < std::tie(other.task.due_step, other.task.priority);
    }
  };
  [[nodiscard]] bool is_small(const Launch& launch) const;
  void take_small(TimeUs now_us, std::vector<Launch>& launches);
  void launch(Waiting& waiting, model::LinkIndex link, std::uint64_t bytes, TimeUs now_us,
              std::vector<Launch>& launches);
  // These four are in wire bytes, but for piece(), which takes and gives bytes of gradients.
  [[nodiscard]] std::uint64_t part_bytes(model::LinkIndex link) const;
  [[nodiscard]] std::uint64_t least_bytes(model::LinkIndex link) const;
  [[nodiscard]] std::uint64_t piece(model::LinkIndex link, std::uint64_t rest, const Task& task) const;
  [[nodiscard]] std::uint64_t share_of_last(model::LinkIndex link, std::uint64_t rest, const Task& task) const;
  [[nodiscard]] std::uint64_t bytes_until_urgent(model::LinkIndex link) const;
  [[nodiscard]] bool has_room(model::LinkIndex link, TimeUs now_us) const;
  [[nodiscard]] bool any_room(TimeUs now_us) const;
  [[nodiscard]] model::LinkIndex best_link(std::uint64_t rest, const Task& task) const;
  void place(Waiting& waiting, int& looks, TimeUs now_us, std::vector<Launch>& launches);

  std::vector<model::Bucket> buckets_;
  const LaunchCodecs& codecs_;
  LinkBoard board_;
  std::deque<Waiting> waiting_;             // the most urgent first
  std::deque<Waiting> small_;               // the small buckets, the most urgent first
  std::vector<std::uint64_t> small_bytes_;  // [link]: the bytes of small launches that are in flight
  std::vector<double> free_at_us_;          // [link]: scratch memory of take()
  double compute_us_ = 0;
  std::optional<double> urgent_us_;  // when an urgent bucket is expected
  std::uint64_t launches_ = 0;
};

}  // namespace deft::sched
