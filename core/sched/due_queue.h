// What a plan has dated and workers have made ready, on its way to the links: earliest due first.
//
//   DueQueue queue(setup);
//   queue.pace(plan.compute_us);                      // how long a part may keep a link
//   queue.add({bucket, generation, due_step, priority});   // ready to go, to be applied before the forward of due_step
//   queue.expect_urgent(at_us);                       // what no part should hold up is ready then
//   queue.take(now_us, launches);                     // what the links have room for
//   queue.finish(launch, now_us);                     // then take again
//
// The plan decides when a generation is applied. What goes when follows from that: a link that has room takes of what is
// ready what is due first, and of that what forward needs first. So no link idles while anything is ready, and what may be
// late fills the gaps. Parts end when something urgent is forecast; where forecasts err, that waits for two parts at most. A
// part goes to the link that is free first, unless all the rest would be through earlier on another one. Small buckets do
// not wait for room: links carry them on their priority channel (core/model/parts.h).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/model/update_schedule.h"
#include "core/sched/link_board.h"
#include "core/sched/scheduler.h"

namespace deft::sched {

class DueQueue {
 public:
  struct Task {
    model::BucketIndex bucket = 0;
    std::uint64_t generation = 0;
    std::uint64_t due_step = 0;
    std::uint32_t priority = 0;  // of what is due in the same step: lower goes first
  };

  explicit DueQueue(const Setup& setup);

  // Parts are a small share of a step, so that what is urgent waits little, but long beside a link's latency.
  void pace(double compute_us) { compute_us_ = compute_us; }
  // When something is expected that is more urgent than all that waits; nothing where none is. Parts end by then.
  void expect_urgent(std::optional<double> at_us) { urgent_us_ = at_us; }
  void add(const Task& task);
  // The dates may have changed: `schedules` of the buckets tell the new ones.
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
  };
  static bool is_before(const Waiting& a, const Waiting& b);
  [[nodiscard]] bool is_small(const Launch& launch) const;
  void take_small(TimeUs now_us, std::vector<Launch>& launches);
  void launch(Waiting& waiting, model::LinkIndex link, std::uint64_t bytes, TimeUs now_us,
              std::vector<Launch>& launches);
  [[nodiscard]] std::uint64_t part_bytes(model::LinkIndex link) const;
  [[nodiscard]] std::uint64_t least_bytes(model::LinkIndex link) const;
  [[nodiscard]] std::uint64_t piece(model::LinkIndex link, std::uint64_t rest) const;
  [[nodiscard]] std::uint64_t bytes_until_urgent(model::LinkIndex link) const;
  [[nodiscard]] bool has_room(model::LinkIndex link, TimeUs now_us) const;
  [[nodiscard]] bool any_room(TimeUs now_us) const;
  [[nodiscard]] model::LinkIndex best_link(std::uint64_t rest) const;
  void place(Waiting& waiting, int& looks, TimeUs now_us, std::vector<Launch>& launches);

  std::vector<model::Bucket> buckets_;
  LinkBoard board_;
  std::deque<Waiting> waiting_;             // the most urgent first
  std::deque<Waiting> small_;               // so are those that are small
  std::vector<std::uint64_t> small_bytes_;  // of each link, on their way
  std::vector<double> free_at_us_;          // of each link, with what `take` has looked at; kept for its memory alone
  double compute_us_ = 0;
  std::optional<double> urgent_us_;  // when it is expected
  std::uint64_t launches_ = 0;
};

}  // namespace deft::sched
