// What the builders of timetables share: list scheduling on the links, and the compute of the steps.
//
//   runner.run(arrival_us);                      // the next step; its buckets are ready at runner.ready_us(bucket)
//   list.send(sendings, use_gap, arrived);       // sends them, the most urgent first
//
// Times are virtual microseconds. Not thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/plan/link_time.h"
#include "core/plan/plan_limits.h"
#include "core/plan/problem.h"

namespace deft::plan {

// List scheduling: of the ready buckets, the bucket that forward needs first is sent first, on the link where it
// finishes first.
class ListScheduler {
 public:
  ListScheduler(const Problem& problem, double part_us) : links_(problem, part_us) {}

  [[nodiscard]] LinkTime& links() { return links_; }
  [[nodiscard]] const LinkTime& links() const { return links_; }

  // Sends all of `sendings`, which stand in the order in which they become ready; forward needs the last one first.
  // `use_gap(link, until_us)`: nothing is ready before until_us, and the link is idle. True: it now waits until then; false:
  // another link may be free earlier. `arrived(sending)` is called for each bucket that has been sent whole.
  template <typename UseGap, typename Arrived>
  void send(std::vector<Sending>& sendings, const UseGap& use_gap, const Arrived& arrived) {
    std::size_t next = 0;
    while (next < sendings.size() || !urgent_.empty()) {
      const std::size_t idle = links_.idle();
      next = take_ready(sendings, next, idle);
      if (urgent_.empty()) {
        if (!use_gap(idle, sendings[next].ready_us)) continue;
        next = take_ready(sendings, next, idle);
      }
      Sending& sending = sendings[urgent_.front()];
      links_.place(sending, links_.best(idle, sending));
      if (sending.rest > 0) continue;
      arrived(sending);
      std::pop_heap(urgent_.begin(), urgent_.end());
      urgent_.pop_back();
    }
  }

 private:
  std::size_t take_ready(const std::vector<Sending>& sendings, std::size_t next, std::size_t link) {
    for (; next < sendings.size() && sendings[next].ready_us <= links_.free_us(link); ++next) {
      urgent_.push_back(next);
      std::push_heap(urgent_.begin(), urgent_.end());
    }
    return next;
  }

  LinkTime links_;
  std::vector<std::size_t> urgent_;  // a heap of ready buckets: the highest index is the first that forward needs
};

// Runs steps, and keeps when they began and when their buckets were ready.
class StepRunner {
 public:
  explicit StepRunner(const Problem& problem) : timeline_(problem), ready_us_(problem.buckets()) {}

  // The next step; `arrival_us` as ComputeTimeline has it.
  void run(const double* arrival_us) {
    began_us_.push_back(timeline_.now_us());
    timeline_.run_step(arrival_us, ready_us_.data());
  }
  [[nodiscard]] std::uint32_t steps() const { return static_cast<std::uint32_t>(began_us_.size()); }  // that have run
  [[nodiscard]] double now_us() const { return timeline_.now_us(); }
  [[nodiscard]] double ready_us(std::size_t bucket) const { return ready_us_[bucket]; }  // in the newest step
  [[nodiscard]] double began_us(std::size_t step) const { return began_us_[step]; }

 private:
  ComputeTimeline timeline_;
  std::vector<double> ready_us_;
  std::vector<double> began_us_;  // of each step
};

// By how many steps an update comes late that arrives `behind_us` after the forward that would see it first needs it. Waiting within the
// tolerance is none.
inline double steps_late(double behind_us, const Problem& problem, const PlanLimits& limits) {
  constexpr double kRounding = 1e-7;  // of compute: a delay below it comes from arithmetic
  const double tolerated_us = (limits.bubble_tolerance + kRounding) * problem.compute_us();
  return std::max(0.0, std::ceil((behind_us - tolerated_us) / problem.compute_us()));
}

}  // namespace deft::plan
