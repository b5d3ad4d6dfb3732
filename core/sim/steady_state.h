// From a run to its steady state: finds the period of the pattern of updates and averages over whole periods.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/scheduler.h"
#include "core/sim/simulation.h"

namespace deft::sim {

class SteadyState {
 public:
  explicit SteadyState(std::uint64_t steps) : steps_(steps + 1) {}

  // The leader begins `step`; totals since the beginning of the run.
  void step_began(std::uint64_t step, double now_us, double computed_us, std::uint64_t sent_bytes);
  void decided(const sched::Update& update);

  // Fills in all that is measured, over the steps from `warmup` on.
  void measure(std::uint64_t warmup, std::size_t buckets, Outcome& outcome) const;

 private:
  struct Step {
    double began_us = 0;
    double computed_us = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t updates = 0;  // of buckets, applied before its forward
    std::uint64_t staleness = 0;
    std::uint64_t merged = 0;
    std::uint64_t pattern = 0;  // a digest of its updates, the same in every period
  };
  [[nodiscard]] std::uint64_t period(std::uint64_t first, std::uint64_t end) const;
  std::vector<Step> steps_;
};

}  // namespace deft::sim
